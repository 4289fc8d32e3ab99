"""A draft model trained on texts that the target model wrote."""
