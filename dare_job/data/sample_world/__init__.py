"""The sample world: users, items and interactions with real structure, for trying the whole job offline."""

from dare_job.data.sample_world.write import WorldSummary, write_world

__all__ = ["WorldSummary", "write_world"]
