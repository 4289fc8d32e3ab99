"""Beams: several continuations of a prompt at once."""
