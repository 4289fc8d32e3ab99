"""Semantic item ids by residual quantization."""
