"""A generative recommender trained on interaction sequences, and its baselines."""
