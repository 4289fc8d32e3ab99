"""What the DAG files share. Imports neither dare_job nor Spark: a scheduler needs only Airflow and this folder."""
