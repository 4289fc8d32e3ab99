"""Every way of decoding beside plain ``generate``, timed in one run on a model of real profiles."""
