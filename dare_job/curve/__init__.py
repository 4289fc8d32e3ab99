"""The quality-cost curve over (k, p) of the relaxed rule, and the setting that a target picks from it."""
