"""The decoding loop: requests, steps, draft budget, prefill."""
