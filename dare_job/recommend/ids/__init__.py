"""Items as tokens: residual-quantised ids, their file, and their place in a model's vocabulary."""
