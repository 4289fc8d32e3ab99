from dare_job.api.completion import Completion as Completion
from dare_job.api.llm import LLM as LLM
from dare_job.api.pool import Pool as Pool
from dare_job.api.replays import Replay as Replay
from dare_job.api.replays import replay as replay
from dare_job.errors import DareJobError as DareJobError

__version__: str
__all__ = ["LLM", "Completion", "DareJobError", "Pool", "Replay", "replay"]
