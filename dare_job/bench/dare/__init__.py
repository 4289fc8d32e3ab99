"""The speed tables of DARE (Xi et al., 2024) measured again: ``python -m dare_job.bench dare``.

Everything finished is kept in the work folder: a stopped run continues.
"""
