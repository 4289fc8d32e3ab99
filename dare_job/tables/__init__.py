"""What passes between stages: published text, chunk files, snapshot parts, stage inputs."""
