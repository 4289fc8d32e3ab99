"""What can be chosen, and what the papers count."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dare_job.errors import ConfigError


@dataclass(frozen=True)
class Options:
    out: Path
    min_user: int  # interactions of a user that stays
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
        """Raise ConfigError, naming the option, where they cannot be; also where ``out`` is taken."""
        if not 0.5 < self.history_share < 1:
            raise ConfigError(f"--history-share {self.history_share} must be over 0.5 and under 1")
        if self.valid_share + self.test_share >= 1:
            raise ConfigError(f"--valid-share {self.valid_share} and --test-share {self.test_share} leave "
                              "nothing to train on: their sum must be under 1")
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out {self.out} is a file: name a folder")
        if self.out.is_dir() and any(self.out.iterdir()):
            raise ConfigError(f"--out {self.out} is there already: name another folder, or remove it first")


@dataclass(frozen=True)
class PaperCounts:
    """As DARE's appendix A has them."""

    users: int
    items: int
    interactions: int
    rounded: bool = False


COUNTS = {"movielens-10m": PaperCounts(72_000, 10_000, 10_000_000, rounded=True),
          "amazon-books": PaperCounts(49_391, 78_318, 5_002_043)}
