"""Training of models: draft model, recommender, alignment, item ids, embedded model."""
