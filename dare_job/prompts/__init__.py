"""Prompt sets: a file each, rendered to plain text. Knows nothing about models or tokenizers."""

from dare_job.prompts.read import DOMAINS, MOST_HISTORY, SAMPLE, Domain, known, load
from dare_job.prompts.sets import HistoryItem, PromptSet

__all__ = ["DOMAINS", "MOST_HISTORY", "SAMPLE", "Domain", "HistoryItem", "PromptSet", "known", "load"]
