"""The decode engine stands alone: no Spark, faiss, Airflow, stage or reader behind it."""

import subprocess
import sys

FORBIDDEN = ("pyspark", "faiss", "airflow", "dare_job.stages", "dare_job.data", "dare_job.spark", "pandas")


def test_imports():
    code = (
        "import importlib, pkgutil, sys, dare_job.decode as d\n"
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(d.__path__, 'dare_job.decode.')]\n"
        f"print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
