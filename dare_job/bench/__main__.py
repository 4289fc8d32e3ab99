"""``python -m dare_job.bench NAME``: runs one figure of the documents."""

import sys

from dare_job.bench import cli
from dare_job.cli import run_app

run_app(cli.with_commands(sys.argv[1] if len(sys.argv) > 1 else None))
