"""Fine-tunes a small instruction-tuned model on texts that a larger model wrote for the same prompts."""
