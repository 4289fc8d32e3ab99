"""Training of models: draft model, recommender, alignment, item ids, writer, LightGCN, embedded model."""
