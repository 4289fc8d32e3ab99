"""The part of ``text_key`` that all rows share: a digest of everything except the prompt."""

from dare_job.config.settings import JobConfig
from dare_job.decode.settings import BEAM_METHODS
from dare_job.workspace import digest

_PARAMETERS_OF_RULE = {
    "k": {"relaxed", "literal", "top_k"}, "p": {"relaxed", "literal", "threshold"}, "c": {"ratio"},
    "epsilon": {"entropy"}, "delta": {"entropy"}}
_DRAFT_SETTINGS = {"method"}  # settings of the section sample that do not change the distribution


def text_salt(config: JobConfig, model_hash: str, draft_hash: str | None = None,
              entity: str | None = None) -> str:
    """Digest of the model and of every setting that can change text.

    - Strict verification equals greedy decoding whatever is drafted. So mode ``dare`` with the strict rule,
      ``resd`` and ``autoregressive`` share one key, and switching between them makes no text stale.
    - Any other rule in mode ``dare`` depends on the drafts: on the settings of pools and draft model, and on
      the batch size unless ``verify.reproducible``. A periodic strict refresh does not change the key. A
      verifier that is a plug-in counts as strict if it is lossless; else plug-ins count by options, version
      and file.
    - Sampled text follows the model's own distribution however drafts are verified. The section ``sample``
      and the seed count, the drafting ``method`` does not.
    - ``decode.end_loops`` counts only if it is false: a text that does not loop is the same with it.
    - In mode ``beam`` the section ``beam`` counts. Drafts change beam widths and random numbers, so the draft
      model counts too, except in deterministic beam search without a single cache.
    - System text and examples of the entity type's prompt set count, and arguments of the chat template. The
      date that a template prints does not, or all texts would be stale on every date.
    - What is not set does not count, so that keys from before a setting existed stay valid.

    Parameters
    ----------
    model_hash
        Fingerprint of the model's files.
    draft_hash
        Fingerprint of the draft model's files.
    entity
        "user" or "item", whose system text and examples count; None: without them.

    Raises
    ------
    ConfigError
        A plug-in cannot be loaded.
    """
    optional = {"template_arguments": config.model.template_arguments,
                "stop": sorted(set(config.decode.stop)),
                "repetition_penalty": config.decode.repetition_penalty,
                "conversation": entity and config.prompt_set(entity).conversation_hash(entity)}
    return digest({
        "model": model_hash, "dtype": config.model.dtype, "chat_template": config.model.chat_template,
        "tokens": [config.decode.min_new_tokens, config.decode.max_new_tokens],
        "verify": _verification(config, draft_hash),
        **{name: value for name, value in optional.items() if value},
        **({} if config.decode.end_loops or config.decode.mode == "beam" else {"end_loops": False})})


def _verification(config: JobConfig, draft_hash: str | None) -> dict:
    decode, verify, drafter, plug_ins = config.decode, config.verify, config.drafter, config.plug_ins
    if decode.mode == "sample":
        return {"rule": "sample", "seed": config.seed, **config.sample.model_dump(exclude=_DRAFT_SETTINGS)}
    if decode.mode == "beam":
        return {"rule": "beam", **_beam_settings(config, draft_hash)}
    if decode.mode != "dare" or verify.is_strict:  # resd and autoregressive are strict
        return {"rule": "strict"}
    values = {"rule": "plugin" if "verify.rule" in plug_ins else verify.rule,
              "drafts": [decode.nodes, decode.depth, decode.context, decode.blend_lambda, decode.score],
              "seed": config.seed, "pools": [section.model_dump() for section in
                       (config.pools, config.waves, config.router, config.group, config.embed)]}
    values |= {name: getattr(verify, name) for name, rules in _PARAMETERS_OF_RULE.items()
               if verify.rule in rules}
    if drafter.model:
        values["drafter"] = {"source": "model", "tree": drafter.tree, "hash": draft_hash}
    if plug_ins:
        values["plugins"] = {key: plugin.record() for key, plugin in plug_ins.items()}
    if verify.length_quantile is not None:
        values["length_quantile"] = verify.length_quantile
    if not verify.reproducible:
        values["batch_size"] = decode.batch_size
    return values


def _beam_settings(config: JobConfig, draft_hash: str | None) -> dict:
    beam, sample = config.beam, config.sample
    values = beam.model_dump(include={"width", "length_penalty", "single_cache"})
    values["temperature"] = sample.temperature
    distribution, draft_distribution = BEAM_METHODS[beam.method]
    if sample.temperature > 0:
        values |= {"top_k": sample.top_k, "top_p": sample.top_p, "law": distribution, "seed": config.seed}
    drafts_change_text = beam.single_cache or sample.temperature > 0
    if config.drafter.model and beam.layers and drafts_change_text:
        values |= beam.model_dump(include={"layers", "draft_width", "min_width", "threshold"})
        values["draft_law"] = draft_distribution
        values["draft"] = draft_hash
    return values
