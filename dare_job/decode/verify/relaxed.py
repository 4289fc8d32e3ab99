"""Relaxed verification (DARE, equations 4, 7 and 8).

A draft token x passes behind a node with distribution q when

    relaxed    x is the first choice, or x in TopK(q, k) and q(x) > p
    top_k      x in TopK(q, k)
    threshold  x is the first choice, or q(x) > p
    literal    x in TopK(q, k) and q(x) > p, the first choice too: equation 8 as it is printed

and an end-of-text token only as the first choice. x is in TopK when fewer than k tokens are more probable.
A token that has an embedding but no score (the embedding may be the wider) does not pass.
"""

import torch

from dare_job.decode.tree import Tree
from dare_job.decode.verify.verdict import Judgement, judge


def verify(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None, *, rule: str, k: int,
           p: float, eos: torch.Tensor) -> Judgement:
    """scores float32 (T, V); strict bool (R,): rows whose tokens pass as first choices alone (None: no
    row); eos int64 (E,): end-of-text tokens.
    """
    choices, finite = judge(scores)
    parents, width = tree.parents, scores.shape[1]
    first = tree.tokens == choices[parents]
    own = scores[parents, tree.tokens.clamp_max(width - 1)]
    logp = own - scores.logsumexp(-1)[parents]
    if rule == "threshold":
        passed = first | (logp.exp() > p)
    else:
        least = scores.topk(min(k, width), -1).values[:, -1][parents]
        in_top = (own >= least) & own.isfinite()
        if rule == "top_k":
            passed = in_top
        else:
            passed = in_top & (logp.exp() > p)
            if rule == "relaxed":
                passed = first | passed
    passed = passed & (first | ~torch.isin(tree.tokens, eos))
    if strict is not None:
        passed = torch.where(strict[tree.rows], first, passed)
    return Judgement(choices, passed & (tree.tokens < width), finite, logp)
