"""The job's stages, one file each, in the order in which they run."""
