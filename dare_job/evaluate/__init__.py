"""What texts and settings are worth: replay, tuning, acceptance rates, quality curve, CTR, model check."""
