"""Reads from input files, with Arrow and without Spark, the few rows that a preview needs.

The same rows as in the stage plan: each module follows the one of the same name in ``dare_job/data/readers``,
and tests compare both on the same files. Large inputs are read in batches, in bounded memory.
"""
