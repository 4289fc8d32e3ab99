"""Top-K items from a generative recommender: item ids as tokens, training, constrained beam search."""
