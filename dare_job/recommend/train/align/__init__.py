"""A draft recommender learns to say the target's top-K items: AtSpeed (Lin et al. 2024) and its peers."""
