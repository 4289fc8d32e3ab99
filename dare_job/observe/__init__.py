"""What an operator sees of a run: log lines, progress, times, metrics. No stage depends on it."""
