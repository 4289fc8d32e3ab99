"""The decode engine: drafts from earlier texts or a draft model, verified by the target model as token trees.

It knows nothing of Spark, tables, prompt sets or stages. Shape letters used in this package: R rows decoded
together, N draft nodes of a row, Q = N + 1 queries of a row (column 0 is the root, the last emitted token),
L text positions, V vocabulary.
"""
