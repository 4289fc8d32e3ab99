"""Top-K recommendation as constrained beam search over a trie of item ids (AtSpeed), optionally drafted."""
