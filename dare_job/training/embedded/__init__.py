"""The embedded sample model: corpus, training, evaluation."""
