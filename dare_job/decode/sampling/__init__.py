"""Sampling with many candidates: laws of drafts, and rules whose output has the target's law.

``warp`` makes probabilities, ``draw`` draws candidates by a named law, ``Verifier`` judges those of a node by
a rule that is exact for the law, ``walk`` and ``traverse`` judge trees.
"""

from dare_job.decode.sampling.distributions import LAWS, NONE, draw, enumerate_draws, law
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.traversal import law_of_traversal, traverse
from dare_job.decode.sampling.verify import Candidates, Outcome, Output, Verifier, Walk, law_of_walk, walk
from dare_job.decode.sampling.warp import Warp, warp

__all__ = ["LAWS", "NONE", "RULES", "Candidates", "Outcome", "Output", "Verifier", "Walk", "Warp", "draw",
           "enumerate_draws", "law", "law_of_traversal", "law_of_walk", "traverse", "walk", "warp"]
