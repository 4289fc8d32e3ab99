"""The synthetic data set: synthetic users, items and interactions with structure, to try the job offline."""

from dare_job.data.sample_world.write import WorldSummary, write_world

__all__ = ["WorldSummary", "write_world"]
