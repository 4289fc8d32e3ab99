"""AtSpeed alignment of a draft recommender with its target."""
