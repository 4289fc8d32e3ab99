"""What a drafter, verifier or draft budget must do, as tests for its author.

    pytest --pyargs dare_job.contract --drafter package.module:Class

docs/how-to/add-your-method.md explains the interfaces.
"""
