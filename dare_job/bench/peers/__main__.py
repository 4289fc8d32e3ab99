"""``python -m dare_job.bench.peers``: the same as ``python -m dare_job.bench peers``."""

import sys

from dare_job.bench.cli import app
from dare_job.cli import run_app

sys.argv.insert(1, "peers")
run_app(app)
