"""dare-job: LLM knowledge for recommenders, written nightly, drafted from yesterday's text."""

__version__ = "0.1.0"
