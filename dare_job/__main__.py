"""The same command line as ``dare-job``: ``python -m dare_job`` and ``spark-submit .../__main__.py``."""

import sys
from pathlib import Path

if not __package__:
    # Started by path: the script's own folder would hide packages behind our module names.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dare_job.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
