"""Arrow schemas of all tables that stages exchange or publish.

Increment ``SCHEMA_VERSION`` whenever a column's name, type or meaning changes.
"""

import pyarrow as pa

SCHEMA_VERSION = 3
ENTITIES = ("user", "item")
GLOBAL = "global"  # name of the pool that contains texts of all groups
MODES_WITHOUT_POOLS = ("autoregressive", "beam")  # decoding modes that do not draft from previous text
MODES_WITH_GROUP_POOLS = ("dare", "sample")  # draft from group pools and from the row's own previous text
ATTRIBUTES = pa.map_(pa.string(), pa.string())
TRAFFIC = "traffic"  # attribute with the impressions of an entity: no prompt shows it, and it makes no group

INTERACTIONS = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("rating", pa.float32()),  # null if the source has no rating
    pa.field("timestamp", pa.int64(), nullable=False),  # seconds since 1970, UTC
])

USERS = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("attributes", ATTRIBUTES),  # values by name
])

ITEMS = pa.schema([
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("title", pa.string()),  # as in the source
    pa.field("attributes", ATTRIBUTES),  # values by name
])

# Texts that another system wrote, for a first run.
TEXTS = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("knowledge", pa.string()),
])

REJECTS = pa.schema([
    pa.field("source", pa.string(), nullable=False),  # file name (and archive member)
    pa.field("line", pa.int64()),  # 1-based line or row number
    pa.field("reason", pa.string(), nullable=False),  # what is wrong with the row
    pa.field("raw", pa.string()),  # first 200 characters of the rejected row
])

# One row per known entity: its prompt on this date, and whether its text must be generated.
PLAN = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("prompt", pa.string()),  # null if error is set
    pa.field("prompt_sha256", pa.string()),  # SHA-256 of the prompt
    pa.field("text_key", pa.string()),  # sha256 of prompt, model and the settings that can change text
    pa.field("stale", pa.bool_(), nullable=False),  # no text, another text_key, refresh is due, or new error
    pa.field("strict", pa.bool_(), nullable=False),  # generated with strict verification: refresh is due
    pa.field("interactions", pa.int32(), nullable=False),  # up to and including the date
    pa.field("attributes", ATTRIBUTES),  # of the input
    pa.field("error", pa.string()),  # why there is no prompt (for example an empty history)
    pa.field("carried_reason", pa.string()),  # why a stale row is held back, unless it is in the sample
    pa.field("unseen_interactions", pa.int32()),  # interactions since the text was written; null: unknown
    pa.field("age_days", pa.int32()),  # age of the text, 20 if its date is not known; null: no text
    pa.field("distance", pa.float32()),  # 0 to 1: how far the history's item vectors moved since the text
    pa.field("value", pa.float64()),  # expected value of writing the row
    pa.field("cost", pa.int64()),  # estimate: tokens of the prompt, and eight for each decoding step
    pa.field("tokens", pa.int64()),  # estimated number of tokens of prompt and text
    pa.field("rank", pa.int64()),  # order in which rows are written, lowest first: tier, score, hash of id
    pa.field("sample", pa.int32()),  # key in the seeded sample, which is written first, lowest keys first
])

# Rows of a plan that get the text of another row, which has the same text_key.
COPIES = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("text_of", pa.string(), nullable=False),  # entity_id of the other row
    pa.field("written_rank", pa.int64(), nullable=False),  # rank of the other row; -1: its text is not stale
    pa.field("written_sample", pa.int32()),  # ``sample`` of the other row
])

VECTORS = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("vector", pa.list_(pa.float32()), nullable=False),  # collaborative embedding
])

GROUPS = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("collaborative_group", pa.string()),  # null if the entity has no vector
    pa.field("attribute_group", pa.string()),  # null if the entity has no usable attribute
])

ROUTES = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("pool", pa.string(), nullable=False),  # pool name, for example "collaborative-0007"
    pa.field("pool_kind", pa.string(), nullable=False),  # collaborative | attribute | global
    pa.field("reason", pa.string(), nullable=False),  # why this pool was chosen
])

# OUT/knowledge/entity=user|item/dt=YYYY-MM-DD/part-*.parquet: a full snapshot of every known entity.
KNOWLEDGE = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("knowledge", pa.string()),  # null if error is set and there is no previous text
    pa.field("token_ids", pa.list_(pa.int32())),  # all tokens, with any thinking block; null: other tokenizer
    pa.field("tokens", pa.int32()),  # number of tokens of the text
    pa.field("finish_reason", pa.string()),  # eos | stop | length | loop | error
    pa.field("error", pa.string()),  # why no text was generated on this date
    pa.field("generated_dt", pa.string()),  # date whose run generated the text, or gave it to this row
    pa.field("source_run_id", pa.string()),  # id of the run that generated the text
    pa.field("pool", pa.string()),  # name of the pool that drafts came from
    pa.field("pool_kind", pa.string()),  # collaborative | attribute | global
    pa.field("prompt_tokens", pa.int32()),  # number of tokens of the prompt
    pa.field("target_steps", pa.int32()),  # forward passes of the model after the prompt's
    pa.field("scored_tokens", pa.int32()),  # reused tokens: previous text accepted in the prompt's pass
    pa.field("accepted_tokens", pa.int32()),  # draft tokens accepted in later forward passes
    pa.field("relaxed_tokens", pa.int32()),  # accepted tokens, reused or drafted, other than the argmax
    pa.field("guarded_tokens", pa.int32()),  # tokens after the length limit, verified strictly
    pa.field("step_tokens", pa.list_(pa.int16())),  # tokens emitted per forward pass: accepted tokens + 1
    pa.field("copied_words", pa.int32()),  # words in long passages that the text copies from its prompt
    pa.field("retrieval_ms", pa.float32()),  # part of decode_ms that drafting took
    pa.field("decode_ms", pa.float32()),  # the row's share of the time of its steps, in milliseconds
    pa.field("prompt_ms", pa.float32()),  # part of decode_ms that reading the prompt took, with previous text
    pa.field("slot_steps", pa.float32()),  # share of batch slots over these forward passes, incl. idle slots
    pa.field("prompt_sha256", pa.string()),  # SHA-256 of the prompt that the text answers
    pa.field("text_key", pa.string()),  # sha256 of prompt, model and the settings that can change text
    pa.field("prompt_set", pa.string()),  # version of the prompt set of the text's prompt
    pa.field("text_interactions", pa.int32()),  # number of interactions when the text was written
    pa.field("unseen_interactions", pa.int32()),  # number of interactions since the text was written
    pa.field("stale_since", pa.string()),  # first date on which the row changed and was not written
    pa.field("carried_reason", pa.string()),  # why a changed row was not written on this date
    pa.field("failures", pa.int32()),  # number of consecutive runs in which the text failed
    pa.field("failed_dt", pa.string()),  # date of the last of these runs
    pa.field("copied", pa.bool_()),  # the text was written for another row of the same text_key
    pa.field("sampled", pa.bool_()),  # the text was written as one of the seeded sample
    pa.field("new_interactions", pa.int32()),  # interactions that the text knows and the previous one did not
    pa.field("distance", pa.float32()),  # 0 to 1: how far the history moved since the previous text
    pa.field("run_id", pa.string(), nullable=False),  # id of the run that published this partition
], metadata={"dare_job.schema_version": str(SCHEMA_VERSION)})

FEATURES_VERSION = 1

# OUT/features/ids/entity=user|item/ids.parquet: every entity that ever had features; ``id`` starts at 1 and
# increases by 1 per row.
IDS = pa.schema([
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("id", pa.int32(), nullable=False),  # from 1, increases by 1 per row
])


def features(dim: int, levels: int) -> pa.Schema:
    """Schema of OUT/features/entity=user|item/dt=YYYY-MM-DD/part-*.parquet, sorted by ``id``.

    Parameters
    ----------
    dim
        Vector length.
    levels
        Number of cluster levels. The levels are nested: cluster_1 // sizes[1] == cluster_0.
    """
    return pa.schema([
        pa.field("entity_id", pa.string(), nullable=False),
        pa.field("id", pa.int32(), nullable=False),  # as in the table of dense ids, the same on every date
        pa.field("vector", pa.list_(pa.float32(), dim), nullable=False),  # embedding of the text
        *[pa.field(f"cluster_{level}", pa.int32(), nullable=False) for level in range(levels)],  # cluster id
        pa.field("text_sha256", pa.string(), nullable=False),  # SHA-256 of the encoded text
    ], metadata={"dare_job.schema_version": str(FEATURES_VERSION)})


CANDIDATES_VERSION = 1

# OUT/candidates/dt=YYYY-MM-DD/part-*.parquet: ranks 1 to K of each user, or one row with ``error``.
CANDIDATES = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("rank", pa.int32()),  # 1 to K
    pa.field("item_id", pa.string()),  # recommended item
    pa.field("score", pa.float32()),  # log-probability of the item's id; null if source is popularity
    pa.field("source", pa.string()),  # model | popularity
    pa.field("target_forwards", pa.int32()),  # forward passes that included the user, with the prompt's
    pa.field("accepted_steps", pa.int32()),  # id levels that needed no forward pass of their own
    pa.field("error", pa.string()),  # why the user has no recommendations
    pa.field("run_id", pa.string(), nullable=False),  # id of the run that made the recommendations
], metadata={"dare_job.schema_version": str(CANDIDATES_VERSION)})
