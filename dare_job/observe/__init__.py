"""What an operator sees of a run: log, progress, durations and metrics."""
