"""Settings of earlier versions, and what replaced each of them."""

_SEED = "use seed, the one seed of all stages"
_GATE = "it is a constant now"
_REVISION = "write the revision after the name: "

# Key of an earlier version -> what to write instead.
REPLACED = {
    "model.revision": f"{_REVISION}model.name: NAME@REVISION",
    "encode.revision": f"{_REVISION}encode.model: NAME@REVISION",
    "recommend.revision": f"{_REVISION}recommend.model: NAME@REVISION",
    "drafter.revision": f"{_REVISION}drafter.model: NAME@REVISION",
    "drafter.source": "set drafter.model for a draft model and leave it out for retrieval; the hybrid of "
                      "both was removed",
    "drafter.confidence": "it belonged to the hybrid drafter, which was removed",
    "sample.seed": _SEED, "beam.seed": _SEED, "embed.seed": _SEED, "group.seed": _SEED, "pools.seed": _SEED,
    "baseline.seed": _SEED, "encode.seed": _SEED, "recommend.seed": _SEED,
    "sample.law": "use sample.method: RULE or RULE/DISTRIBUTION, such as rrs, rrs/iid or k_seq",
    "sample.rule": "use sample.method: RULE or RULE/DISTRIBUTION, such as rrs, rrs/iid or k_seq",
    "beam.law": "use beam.method: iid, without_replacement, or BEAMS/DRAFTS",
    "beam.draft_law": "use beam.method: iid, without_replacement, or BEAMS/DRAFTS",
    "beam.temperature": "use sample.temperature, which mode beam reads too",
    "beam.top_k": "use sample.top_k, which mode beam reads too",
    "beam.top_p": "use sample.top_p, which mode beam reads too",
    "embed.source": "set embed.users or embed.items for ready-made vectors; without them LightGCN runs",
    "embed.layers": "LightGCN has 2 layers now",
    "embed.learning_rate": "LightGCN trains with a learning rate of 0.01 now; use embed.epochs",
    "embed.batch_size": "LightGCN fits its batch size (2048) to the number of interactions",
    "gates.min_failing_rows": f"{_GATE}: 3 rows",
    "gates.short_tokens": f"{_GATE}: 8 tokens; use gates.max_short_share",
    "gates.loop_ngram": f"{_GATE}: 32 tokens; use gates.max_loop_share",
    "gates.loop_repeats": f"{_GATE}: 4 repeats; use gates.max_loop_share",
    "gates.loop_tokens": f"{_GATE}: 24 tokens; use gates.max_loop_share",
    "gates.min_length_pairs": f"{_GATE}: 50 texts",
    "spark.driver_memory": "use spark.conf: {spark.driver.memory: 8g}",
    "encode.window": "the encoder reads as many tokens at once as it can",
    "encode.row_group_rows": f"{_GATE}: 8192 rows",
    "encode.max_drift": f"{_GATE}: a warning above 1.25",
    "recommend.draft": "use recommend.draft_depth: auto, all, or a number of levels",
    "log.every_s": f"{_GATE}: 15 seconds",
    "log.file": "the log file OUT/_work/dt=D/logs/RUN_ID.jsonl is always written",
    "metrics.job": "use metrics.labels: {job: NAME}",
}
