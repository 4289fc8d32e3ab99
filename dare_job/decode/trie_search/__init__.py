"""Constrained beam search over a trie of item ids."""
