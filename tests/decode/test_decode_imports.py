"""The decode engine stands alone: no Spark, faiss, Airflow, stage or reader behind it."""

import subprocess
import sys

FORBIDDEN = ("pyspark", "faiss", "airflow", "dare_job.stages", "dare_job.data", "dare_job.spark", "pandas")


def test_imports():
    """None of them can be imported: transformers before 5.21 itself imports pandas where it finds it."""
    code = (
        "import importlib, pkgutil, sys\n"
        f"sys.modules.update(dict.fromkeys({FORBIDDEN!r}))\n"
        "import dare_job.decode as d\n"
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(d.__path__, 'dare_job.decode.')]\n"
        f"print([name for name in {FORBIDDEN!r} if sys.modules[name] is not None])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (out.returncode, out.stdout.strip()) == (0, "[]"), out.stderr
