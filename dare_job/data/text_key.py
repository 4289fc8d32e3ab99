"""What, beside the prompt, decides the text of a row: the part of ``text_key`` that all rows share."""

from dare_job.config.settings import JobConfig
from dare_job.decode.settings import BEAM_METHODS
from dare_job.workspace import digest

_USED_BY = {"k": {"relaxed", "literal", "top_k"}, "p": {"relaxed", "literal", "threshold"}, "c": {"ratio"},
            "epsilon": {"entropy"}, "delta": {"entropy"}}
_OF_DRAFTS = {"method"}  # of the section sample


def text_salt(config: JobConfig, model_hash: str, draft_hash: str | None = None) -> str:
    """Digest of the model and of every setting that can change text; draft_hash: of a draft model's files.

    Strict verification equals greedy decoding whatever is drafted, so neither the mode nor budgets count
    there: ``dare`` under the strict rule, ``resd`` and ``autoregressive`` (strict always, whatever the rule
    says) share one key, and a change between them makes nothing stale. Any other rule under ``dare`` has a
    key of its own: its text depends on what was drafted, so on all that makes and chooses pools, on the draft
    model, and on its batch unless ``verify.reproducible``. Refreshing by the strict rule changes no key: a
    text that was refreshed is as good under the rule that would have let it differ. What is sampled is of the
    model's own law whatever was drafted, and however that was verified: what the section ``sample`` says of
    this law counts, and the seed, not its ``method`` of drafts.

    Of beams the section ``beam`` counts; drafts change their widths and random numbers, so the draft model's
    files and the settings of drafting count, too, but for beam search, which is the same without them.
    """
    return digest({
        "model": model_hash, "dtype": config.model.dtype, "chat_template": config.model.chat_template,
        "tokens": [config.decode.min_new_tokens, config.decode.max_new_tokens],
        "verify": _verification(config, draft_hash)})


def _verification(config: JobConfig, draft_hash: str | None) -> dict:
    decode, verify, drafter = config.decode, config.verify, config.drafter
    if decode.mode == "sample":
        return {"rule": "sample", "seed": config.seed,
                **config.sample.model_dump(exclude=_OF_DRAFTS | _unbiased(config))}
    if decode.mode == "beam":
        return {"rule": "beam", **_beams(config, draft_hash)}
    if decode.mode != "dare" or verify.rule == "strict":  # resd and autoregressive are strict
        return {"rule": "strict"}
    found = {"rule": verify.rule, "drafts": [decode.nodes, decode.depth, decode.context, decode.blend_lambda,
                                              decode.score],
             "seed": config.seed, "pools": [section.model_dump() for section in
                       (config.pools, config.waves, config.router, config.group, config.embed)]}
    found |= {name: getattr(verify, name) for name, rules in _USED_BY.items() if verify.rule in rules}
    if drafter.model:
        found["drafter"] = {"source": "model", "tree": drafter.tree, "hash": draft_hash}
    if verify.length_quantile is not None:
        found["length_quantile"] = verify.length_quantile
    if not verify.reproducible:
        found["batch_size"] = decode.batch_size
    return found


def _unbiased(config: JobConfig) -> set[str]:
    """Keys of before there was a bias hold for texts without one."""
    return set() if config.sample.logit_bias else {"logit_bias"}


def _beams(config: JobConfig, draft_hash: str | None) -> dict:
    beam, sample = config.beam, config.sample
    found = beam.model_dump(include={"width", "length_penalty", "single_cache"})
    found["temperature"] = sample.temperature
    law, draft_law = BEAM_METHODS[beam.method]
    if sample.temperature > 0:
        found |= {"top_k": sample.top_k, "top_p": sample.top_p, "law": law, "seed": config.seed}
    drafts_change_text = beam.single_cache or sample.temperature > 0
    if config.drafter.model and beam.layers and drafts_change_text:
        found |= beam.model_dump(include={"layers", "draft_width", "min_width", "threshold"})
        found["draft_law"] = draft_law
        found["draft"] = draft_hash
    return found
