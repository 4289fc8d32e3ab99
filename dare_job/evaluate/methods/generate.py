"""The methods of transformers: ``generate``, and its prompt lookup."""

from collections.abc import Sequence

from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.evaluate.measured import Measured, timed
from dare_job.generate import baseline

_LOOKUP_TOKENS = 10  # drafted per step, as the documentation of transformers advises


def by_generate(target: Target, requests: Sequence[Request], batch: int, max_new_tokens: int,
                lookup: bool = False, repetition_penalty: float | None = None) -> Measured:
    """Generate the rows once, greedily, with ``generate``.

    Parameters
    ----------
    batch
        Rows decoded together; 1 with ``lookup``.
    lookup
        Draft by prompt lookup.
    """
    options = {"prompt_lookup_num_tokens": _LOOKUP_TOKENS} if lookup else {}
    if repetition_penalty:
        options["repetition_penalty"] = repetition_penalty
    calls = 0

    def count(*_) -> None:
        nonlocal calls
        calls += 1

    handle = target.model.register_forward_pre_hook(count)
    texts, seconds, processor = timed(lambda: baseline.generate_greedy(target, requests, batch,
                                                                       max_new_tokens, **options))
    handle.remove()
    tokens = sum(map(len, texts))
    if not lookup:
        calls = tokens  # a call is one forward pass of each row of its batch
    return Measured(tokens, calls - len(requests), tokens - calls,
                    texts=[{request.id: text for request, text in zip(requests, texts, strict=True)}],
                    seconds=[seconds], processor=[processor])
