"""CTR models trained with and without the generated text."""
