"""Sampling with many candidates: laws of drafts, and rules whose output has the target's law."""

from dare_job.decode.sampling.laws import LAWS, NONE, draw, enumerate_draws
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.verify import Outcome, Output, Verifier

__all__ = ["LAWS", "NONE", "RULES", "Outcome", "Output", "Verifier", "draw", "enumerate_draws"]
