"""Pools compared: which previous texts they hold, how many, by which retrieval and verification."""
