"""Training of the embedded model: corpus, starting weights, training."""
