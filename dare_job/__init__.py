"""Generates LLM texts about users and items for recommender systems, with speculative decoding.

The names in ``__all__`` are the stable Python interface, see docs/reference/api.md. They are loaded when they
are first used, so importing the package is cheap. Everything else is private and may change.
"""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "DareJobError", "DraftBatch", "DraftBudget", "Drafter", "NodeVerification",
           "Pool", "Replay", "Request", "Tree", "VerificationResult", "Verifier", "VerifyContext", "replay"]
_PLACES = {"LLM": "api.llm", "Completion": "api.completion", "DareJobError": "errors", "Pool": "api.pool",
           "Replay": "api.replays", "replay": "api.replays", "Drafter": "decode.request",
           "Request": "decode.request", "DraftBatch": "decode.request", "Tree": "decode.model.tree",
           "DraftBudget": "decode.engine.budget", "VerificationResult": "decode.verify.result",
           "NodeVerification": "decode.verify.result", "Verifier": "decode.verify.plugin",
           "VerifyContext": "decode.verify.plugin"}


def __getattr__(name: str):
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
