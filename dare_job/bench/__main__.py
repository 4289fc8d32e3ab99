"""``python -m dare_job.bench NAME``: runs one figure of the documents."""

from dare_job.bench.cli import app
from dare_job.cli import run_app

run_app(app)
