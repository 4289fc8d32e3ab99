"""``python -m dare_job.bench NAME``: the figures of the documents."""

from dare_job.bench.cli import app
from dare_job.cli import run_app

run_app(app)
