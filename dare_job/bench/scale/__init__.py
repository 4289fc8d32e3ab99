"""How the stages grow with the number of users: ``python -m dare_job.bench.scale --users N,N --work DIR``."""
