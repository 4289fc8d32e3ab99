"""Shared code of the DAG files. Imports neither dare_job nor Spark, so that a scheduler needs neither."""
