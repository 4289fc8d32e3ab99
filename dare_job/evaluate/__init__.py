"""Evaluation without publishing: model check, preview, replay, acceptance, quality curve, CTR, refresh."""
