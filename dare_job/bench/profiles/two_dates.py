"""Texts of two dates by a model of real profiles, and how they compare with the recorded profiles."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dare_job.bench.profiles import data, texts
from dare_job.bench.profiles import train as training
from dare_job.bench.profiles.data import Profile
from dare_job.bench.profiles.train import Settings
from dare_job.config.options import option
from dare_job.data.recorded_texts import by_digest
from dare_job.decode.request import Request
from dare_job.errors import ConfigError
from pools.index import Index

_COMPARED = 150  # texts that are compared with recorded profiles
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """Options of the benches that decode rows with a model of real profiles."""

    data: Path = option("Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and ml-1m.",
                        envvar="DARE_DATA")
    work: Path | None = option("Folder that keeps the trained model, its texts and, of bench pools, each "
                               "block that is measured, for the next call. Default: a temporary folder.",
                               None)
    pool: int = option("Number of other users whose previous texts are drafts.", 1000)
    model: Settings = Settings()
    threads: int = option("Number of torch threads while measuring.", 1)

    def check(self, **numbers: int | Sequence[int]) -> None:
        """Check a command's numbers and ``threads``.

        Raises
        ------
        ConfigError
            A number is below 1, or ``rows`` exceeds the number of test users.
        """
        for name, values in (numbers | {"threads": self.threads}).items():
            if (lowest := int(np.min(values))) < 1:
                raise ConfigError(f"--{name} {lowest} must be at least 1")
        if numbers["rows"] > self.model.test_users:
            raise ConfigError(f"--rows {numbers['rows']} must be at most {self.model.test_users}, the test "
                              "users")


@dataclass(frozen=True)
class TwoDates:
    """Test users whose history has grown since their previous text, and the texts of both dates by user.

    All texts and prompts are token ids, int32 (tokens,), by user.

    Attributes
    ----------
    prompts, texts
        The test users' prompts and texts of the later date.
    previous
        The test users' texts of the earlier date.
    pool
        Texts of the earlier date of other users, whose profiles the model has learned from.
    recorded
        The recorded profiles of the pool's users, and of the test users; empty for texts of a run.
    """

    model: Path
    prompts: dict[str, np.ndarray]
    previous: dict[str, np.ndarray]
    pool: dict[str, np.ndarray]
    texts: dict[str, np.ndarray]
    recorded: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})

    def requests(self, rows: int) -> list[Request]:
        """The first ``rows`` prompts with their pools; that of all users is the last one."""
        all_users = Index.build(list(self.pool.values()))
        return [Request(user, self.prompts[user],
                        (Index.build([self.previous[user]], kind="own"), all_users),
                        previous_ids=self.previous[user]) for user in list(self.prompts)[:rows]]


def prepare(folder: Path, work: Path, settings: Settings, pool: int, rows: int) -> TwoDates:
    """Train the model and generate the texts of both dates, each unless ``work`` has it.

    Parameters
    ----------
    pool
        Number of users whose texts are the drafts of the test users' texts.
    rows
        Minimum number of test users; ``likeness`` may need more.

    Raises
    ------
    ConfigError
        ``pool`` is not above 0 or exceeds the number of users that the model learns from, or as
        ``data.split``.
    DataError
        As ``data.load``.
    ModelError
        A row fails.
    """
    learned, test = data.split(data.load(folder), settings.test_users)
    if not 0 < pool <= len(learned):
        raise ConfigError(f"--pool {pool} must be above 0 and at most {len(learned)}, the users learned from")
    model = training.model(folder, work, settings)
    learned, test = _sample(learned)[:pool], _sample(test)[:max(rows, _COMPARED)]
    _LOG.info("%d texts by %s", pool + 2 * len(test), model.name)
    previous = texts.generate(model, work, {p.user: data.earlier(p) for p in [*learned, *test]})
    prompts = {p.user: data.later(p) for p in test}
    return TwoDates(model, texts.encode(model, prompts), {p.user: previous[p.user] for p in test},
                    {p.user: previous[p.user] for p in learned},
                    texts.generate(model, work, prompts),
                    (texts.recorded(model, learned), texts.recorded(model, test)))


def _sample(profiles: Sequence[Profile]) -> list[Profile]:
    """The profiles in the order of their ids' SHA-256: the first ones are a sample."""
    return [profiles[number] for number in by_digest([profile.user for profile in profiles])]


def likeness(dates: TwoDates) -> dict:
    """How the texts compare with the recorded profiles of the same users, whose figures end in ``_real``.

    Returns
    -------
    distinct, distinct_real
        Share of different texts, one per user.
    accepted, accepted_real, accepted_ratio
        Draft tokens accepted per step with 16 draft tokens from the other users' texts alone, without
        prompts, and texts over profiles.
    tokens, tokens_real
        Median length.
    """
    figures = {}
    for suffix, pool, test in (("", dates.pool, dates.texts), ("_real", *dates.recorded)):
        figures |= {f"distinct{suffix}": round(texts.distinct([*pool.values(), *test.values()]), 4),
                    f"accepted{suffix}": texts.accepted_per_step(list(test.values()), list(pool.values())),
                    f"tokens{suffix}": _median_length(test)}
    return figures | {"accepted_ratio": round(figures["accepted"] / figures["accepted_real"], 3)}


def _median_length(by_user: Mapping[str, np.ndarray]) -> float:
    return float(np.median([len(text) for text in by_user.values()]))
