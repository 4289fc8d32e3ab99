"""Starts Spark and runs work on its executors."""
