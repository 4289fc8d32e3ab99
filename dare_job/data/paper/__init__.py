"""Prepares the two public data sets of the DARE paper from their original files: filters, labels, splits.

The steps follow appendix A and section 4.1.1 of DARE, and the thresholds the public preprocessing of KAR
(arXiv:2306.10933). Everything that neither specifies is an option; see docs/how-to/datasets.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dare_job.config.options import option
from dare_job.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job data prepare`` of any data; the defaults are those of MovieLens-10M."""

    out: Path = option("Folder to write; must not exist.", flag="--save")
    min_user: int = option("Minimum number of interactions of a user.", 1, min=1)
    min_item: int = option("Minimum number of interactions of an item.", 1, min=1)
    positive: float = option("Lowest rating with label 1.", 4.0)
    untitled: Literal["drop", "keep"] = option("Drop or keep interactions with untitled items.", "drop")
    duplicates: Literal["last", "all"] = option(
        "If a user rated an item several times, keep the last rating, or all.", "last")
    history_share: float = option(
        "Share of a user's interactions in each history window, as history.share.", 0.7)
    split: Literal["time", "user"] = option("Split the CTR rows by time or by user.", "time")
    valid_share: float = option("Share of the CTR rows for validation.", 0.1, min=0, max=1)
    test_share: float = option("Share of the CTR rows for testing.", 0.1, min=0, max=1)
    sample: int = option("Number of test users, and of test items, for speed measurements.", 100, min=0)
    seed: int = option("Seed of item halves, test samples and splits by user.", 0, min=0)

    def require(self) -> None:
        """Check the options.

        Raises
        ------
        ConfigError
            A share is invalid, or ``out`` is a file or a folder that is not empty. The message names the
            option.
        """
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
class AmazonOptions(Options):
    """With KAR's filters: DARE's are not published."""

    min_user: int = option("Minimum number of interactions of a user.", 60, min=1)
    min_item: int = option("Minimum number of interactions of an item.", 40, min=1)
    positive: float = option("Lowest rating with label 1.", 5.0)
