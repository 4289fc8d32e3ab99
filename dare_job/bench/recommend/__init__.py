"""Drafted beam search over item ids: steps accepted, forwards saved, time, and what the lists are worth."""
