"""What the DAG files share. Imports neither dare_job nor Spark, which a scheduler need not have."""
