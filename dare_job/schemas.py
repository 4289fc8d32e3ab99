"""Arrow schemas of every table that passes between stages: the contract, in one place.

Versioned: a change of a column's name, type or meaning raises ``SCHEMA_VERSION``.
"""

import pyarrow as pa

SCHEMA_VERSION = 3
ENTITIES = ("user", "item")
GLOBAL = "global"  # the pool of everybody
MODES_WITHOUT_POOLS = ("autoregressive", "beam")  # that draft from no old text
MODES_WITH_GROUP_POOLS = ("dare", "sample")  # that draft from groups' pools and a row's own old text

ATTRIBUTES = pa.map_(pa.string(), pa.string())

INTERACTIONS = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("rating", pa.float32()),  # null where the source has none
    pa.field("timestamp", pa.int64(), nullable=False),  # seconds since 1970, UTC
])

USERS = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("attributes", ATTRIBUTES),
])

ITEMS = pa.schema([
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("title", pa.string()),
    pa.field("attributes", ATTRIBUTES),
])

REJECTS = pa.schema([
    pa.field("source", pa.string(), nullable=False),  # file (and member of an archive)
    pa.field("line", pa.int64()),  # 1-based line or row number
    pa.field("reason", pa.string(), nullable=False),
    pa.field("raw", pa.string()),  # the bad row, cut at 200 characters
])

# One row for each known entity: what the model would be asked tonight, and whether it has to be.
PLAN = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("prompt", pa.string()),  # null where error is set
    pa.field("prompt_sha256", pa.string()),
    pa.field("text_key", pa.string()),  # sha256 of prompt, model and the settings that can change text
    pa.field("stale", pa.bool_(), nullable=False),  # text_key differs, there is no text, or it is refreshed
    pa.field("strict", pa.bool_(), nullable=False),  # written by the strict rule: its night of a refresh
    pa.field("interactions", pa.int32(), nullable=False),  # up to the date
    pa.field("attributes", ATTRIBUTES),
    pa.field("error", pa.string()),  # why no prompt can be written (empty history, ...)
])

VECTORS = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("vector", pa.list_(pa.float32()), nullable=False),
])

GROUPS = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("collaborative_group", pa.string()),  # null: no vector
    pa.field("attribute_group", pa.string()),  # null: no usable attribute
])

ROUTES = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("pool", pa.string(), nullable=False),  # a pool's name, for example "collaborative-0007"
    pa.field("pool_kind", pa.string(), nullable=False),  # collaborative | attribute | global
    pa.field("reason", pa.string(), nullable=False),
])

# OUT/knowledge/entity=user|item/dt=YYYY-MM-DD/part-*.parquet: a full snapshot of every known entity.
KNOWLEDGE = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("knowledge", pa.string()),  # null where error is set
    pa.field("token_ids", pa.list_(pa.int32())),  # of the manifest's tokenizer; null: of another one
    pa.field("tokens", pa.int32()),
    pa.field("finish_reason", pa.string()),  # eos | length | error
    pa.field("error", pa.string()),
    pa.field("generated_dt", pa.string()),  # the date whose run wrote the text
    pa.field("source_run_id", pa.string()),  # the run that wrote the text
    pa.field("pool", pa.string()),
    pa.field("pool_kind", pa.string()),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("target_steps", pa.int32()),  # forwards of the model after the prompt's
    pa.field("scored_tokens", pa.int32()),  # of the row's old text, accepted by the prompt's forward
    pa.field("accepted_tokens", pa.int32()),  # draft tokens accepted by later forwards
    pa.field("relaxed_tokens", pa.int32()),  # tokens of either kind that were not the argmax
    pa.field("guarded_tokens", pa.int32()),  # behind the row's length guard, so written by the strict rule
    pa.field("step_tokens", pa.list_(pa.int16())),  # tokens emitted by each forward: accepted ones + 1
    pa.field("retrieval_ms", pa.float32()),
    pa.field("decode_ms", pa.float32()),
    pa.field("slot_steps", pa.float32()),  # its share of the engine's slots in those forwards, empty ones too
    pa.field("prompt_sha256", pa.string()),
    pa.field("text_key", pa.string()),
    pa.field("run_id", pa.string(), nullable=False),  # the run that wrote this partition
], metadata={"dare_job.schema_version": str(SCHEMA_VERSION)})

FEATURES_VERSION = 1

# OUT/features/ids/entity=user|item/ids.parquet: who ever had features; ``id`` counts from 1, in this order.
IDS = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("id", pa.int32(), nullable=False),
])


def features(dim: int, levels: int) -> pa.Schema:
    """OUT/features/entity=user|item/dt=YYYY-MM-DD/part-*.parquet: each entity with a text, in order of id.

    dim     numbers of a vector
    levels  of clusters; an id on one holds the id on the level above: cluster_1 // sizes[1] == cluster_0
    """
    return pa.schema([
        pa.field("entity_id", pa.string(), nullable=False),
        pa.field("id", pa.int32(), nullable=False),  # of IDS: the same on every date
        pa.field("vector", pa.list_(pa.float32(), dim), nullable=False),
        *[pa.field(f"cluster_{level}", pa.int32(), nullable=False) for level in range(levels)],
        pa.field("text_sha256", pa.string(), nullable=False),  # of the text that the vector is of
    ], metadata={"dare_job.schema_version": str(FEATURES_VERSION)})


CANDIDATES_VERSION = 1

# OUT/candidates/dt=YYYY-MM-DD/part-*.parquet: ranks 1 ... K of each user, or one row with ``error``.
CANDIDATES = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("rank", pa.int32()),
    pa.field("item_id", pa.string()),
    pa.field("score", pa.float32()),  # log-probability of the item's id; null: the list is by popularity
    pa.field("source", pa.string()),  # model | popularity
    pa.field("target_forwards", pa.int32()),  # that the user took part in, the prompt's included
    pa.field("accepted_steps", pa.int32()),  # levels of the id that needed no forward of their own
    pa.field("error", pa.string()),
    pa.field("run_id", pa.string(), nullable=False),  # the run that searched
], metadata={"dare_job.schema_version": str(CANDIDATES_VERSION)})
