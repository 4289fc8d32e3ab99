"""Every decoding method beside ``transformers.generate``, timed in one run on a model of real profiles."""
