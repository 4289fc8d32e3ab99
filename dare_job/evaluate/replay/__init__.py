"""Recorded texts decoded again with drafts, without a model; tuning of draft settings."""
