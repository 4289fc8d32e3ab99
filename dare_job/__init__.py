"""Generates LLM texts about users and items for recommender systems, with speculative decoding."""

__version__ = "0.1.0"
