"""Recorded text written again with drafts, without a model: how much is accepted, and what drafting costs."""
