"""How evenly shards fill the task slots of a cluster, in simulation."""
