"""Checks of tonight's texts before they are published: docs/how-to/quality-gates.md says what each counts.

Reads Arrow batches of KNOWLEDGE in bounded memory; starts no Spark and loads no model.
"""
