"""The speed tables of DARE (Xi et al., 2024) measured again: ``python -m dare_job.bench dare``.

``command`` puts the parts together. What each leaves is kept in the work folder: a stopped run goes on.
"""
