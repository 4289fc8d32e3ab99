from dare_job.api.completion import Completion as Completion
from dare_job.api.llm import LLM as LLM
from dare_job.api.pool import Pool as Pool
from dare_job.api.replays import Replay as Replay
from dare_job.api.replays import replay as replay
from dare_job.decode.engine.budget import DraftBudget as DraftBudget
from dare_job.decode.model.tree import Tree as Tree
from dare_job.decode.request import DraftBatch as DraftBatch
from dare_job.decode.request import Drafter as Drafter
from dare_job.decode.request import Request as Request
from dare_job.decode.verify.plugin import Verifier as Verifier
from dare_job.decode.verify.plugin import VerifyContext as VerifyContext
from dare_job.decode.verify.result import NodeVerification as NodeVerification
from dare_job.decode.verify.result import VerificationResult as VerificationResult
from dare_job.errors import DareJobError as DareJobError

__version__: str
__all__ = ["LLM", "Completion", "DareJobError", "DraftBatch", "DraftBudget", "Drafter", "NodeVerification",
           "Pool", "Replay", "Request", "Tree", "VerificationResult", "Verifier", "VerifyContext", "replay"]
