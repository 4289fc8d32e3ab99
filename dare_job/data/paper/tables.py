"""Schemas of a prepared data set. The first three are the job's own input, with columns that it passes by."""

import pyarrow as pa

from dare_job import tables

INTERACTIONS = pa.schema([
    *tables.INTERACTIONS,
    pa.field("place", pa.int32(), nullable=False),  # 1 to n in the user's history, oldest first
    pa.field("old", pa.bool_(), nullable=False),  # among the first m of n
    pa.field("new", pa.bool_(), nullable=False),  # among the last m of n
])

USERS = pa.schema([
    *tables.USERS,
    pa.field("interactions", pa.int32(), nullable=False),  # n
    pa.field("window", pa.int32(), nullable=False),  # m, n/2 < m < n; n where n < 3
    pa.field("test", pa.bool_(), nullable=False),  # of the sample whose speed is measured
])

ITEMS = pa.schema([
    *tables.ITEMS,
    pa.field("existing", pa.bool_(), nullable=False),  # else newly introduced
    pa.field("test", pa.bool_(), nullable=False),  # of the sample whose speed is measured: new items
])

# ctr/train.parquet, valid.parquet, test.parquet: interactions after each user's old window
CTR = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("label", pa.int8(), nullable=False),  # 1: rated at least the positive rating
    pa.field("rating", pa.float32(), nullable=False),
    pa.field("timestamp", pa.int64(), nullable=False),  # seconds since 1970, UTC
])
