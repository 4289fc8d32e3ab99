"""Checks generated texts before they are published; docs/how-to/quality-gates.md describes each check.

Reads Arrow batches of KNOWLEDGE in bounded memory; starts no Spark and loads no model.
"""
