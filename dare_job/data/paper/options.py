"""Options and schemas of prepared data sets, and the counts of the DARE paper.

The first three schemas are the job's input with additional columns, which the job ignores.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from dare_job import schemas
from dare_job.errors import ConfigError


@dataclass(frozen=True)
class Options:
    out: Path
    min_user: int  # minimum interactions of a user
    min_item: int
    positive: float  # a rating of at least this is label 1
    untitled: Literal["drop", "keep"] = "drop"
    duplicates: Literal["last", "all"] = "last"
    history_share: float = 0.7  # m / n
    split: Literal["time", "user"] = "time"
    valid_share: float = 0.1
    test_share: float = 0.1
    sample: int = 100  # test users, and test items
    seed: int = 0

    def require(self) -> None:
        """Raise ConfigError with the name of an invalid option, or if ``out`` is not empty."""
        if not 0.5 < self.history_share < 1:
            raise ConfigError(f"--history-share {self.history_share} must be over 0.5 and under 1")
        if self.valid_share + self.test_share >= 1:
            raise ConfigError(f"--valid-share {self.valid_share} and --test-share {self.test_share} leave "
                              "nothing to train on: their sum must be under 1")
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--save {self.out} is a file: name a folder")
        if self.out.is_dir() and any(self.out.iterdir()):
            raise ConfigError(f"--save {self.out} is not empty: choose another folder, or remove it first")


@dataclass(frozen=True)
class PaperCounts:
    """Counts in appendix A of DARE."""

    users: int
    items: int
    interactions: int
    rounded: bool = False


COUNTS = {"movielens-10m": PaperCounts(72_000, 10_000, 10_000_000, rounded=True),
          "amazon-books": PaperCounts(49_391, 78_318, 5_002_043)}

INTERACTIONS = pa.schema([
    *schemas.INTERACTIONS,
    pa.field("place", pa.int32(), nullable=False),  # 1 to n in the user's history, oldest first
    pa.field("old", pa.bool_(), nullable=False),  # among the first m of n
    pa.field("new", pa.bool_(), nullable=False),  # among the last m of n
])

USERS = pa.schema([
    *schemas.USERS,
    pa.field("interactions", pa.int32(), nullable=False),  # n
    pa.field("window", pa.int32(), nullable=False),  # m, n/2 < m < n; n where n < 3
    pa.field("test", pa.bool_(), nullable=False),  # in the sample for speed measurements
])

ITEMS = pa.schema([
    *schemas.ITEMS,
    pa.field("existing", pa.bool_(), nullable=False),  # else newly introduced
    pa.field("test", pa.bool_(), nullable=False),  # in the sample for speed measurements; only new items
])

# ctr/train.parquet, valid.parquet, test.parquet: interactions after each user's old window
CTR = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("label", pa.int8(), nullable=False),  # 1: rated at least the positive rating
    pa.field("rating", pa.float32(), nullable=False),
    pa.field("timestamp", pa.int64(), nullable=False),  # seconds since 1970, UTC
])
