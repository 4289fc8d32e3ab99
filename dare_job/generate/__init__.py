"""The stage generate: shard plan, waves, Spark tasks and worker processes."""
