"""Prompt sets: one file each, rendered to plain text. Independent of models and tokenizers."""

from dare_job.prompts.read import DOMAINS, MAX_HISTORY, SAMPLE, Domain, load, set_names
from dare_job.prompts.sets import HistoryItem, PromptSet

__all__ = ["DOMAINS", "MAX_HISTORY", "SAMPLE", "Domain", "HistoryItem", "PromptSet", "load", "set_names"]
