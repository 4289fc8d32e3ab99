"""What is decoded: two nights of texts by a model of real profiles, and how like the real ones they are."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from transformers.utils import logging as hf_logging

from dare_job.bench.profiles import data, texts
from dare_job.bench.profiles import train as training
from dare_job.bench.profiles.data import Profile
from dare_job.bench.profiles.train import Settings
from dare_job.config.options import option
from dare_job.decode.request import Request
from dare_job.errors import ConfigError
from pools.index import Index

_COMPARED = 150  # texts that are compared with recorded profiles
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What the benches ask that decode tonight's rows with a model of real profiles."""

    data: Path = option("Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and ml-1m.",
                        envvar="DARE_DATA")
    work: Path | None = option("Folder that keeps the trained model, its texts and, of bench pools, each "
                               "block that is measured, for the next call. Default: a temporary folder.",
                               None)
    pool: int = option("Other users whose previous texts are drafts.", 1000)
    model: Settings = Settings()
    threads: int = option("torch threads while measuring.", 1)

    def check(self, **numbers: int | Sequence[int]) -> None:
        """Raise ConfigError for numbers below 1, and for more ``rows`` than test users."""
        for name, given in (numbers | {"threads": self.threads}).items():
            if (least := given if isinstance(given, int) else min(given)) < 1:
                raise ConfigError(f"--{name} {least} must be at least 1")
        if numbers["rows"] > self.model.test_users:
            raise ConfigError(f"--rows {numbers['rows']} must be at most {self.model.test_users}, the test "
                              "users")


@contextmanager
def working(folder: Path | None) -> Iterator[Path]:
    """The folder to work in, a temporary one for None; transformers keeps quiet."""
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    with TemporaryDirectory() if folder is None else nullcontext(folder) as path:
        yield Path(path)


@dataclass(frozen=True)
class Night:
    """Tonight's rows, test users whose history has grown, and the old text.

    asked    prompts of tonight as token ids by user
    old      the users' own texts of the earlier night
    pool     texts of the earlier night of other users, whose profiles the model has learned from
    real     the profiles recorded for the pool's users, and for tonight's
    tonight  what the model writes tonight
    """

    model: Path
    asked: dict[str, np.ndarray]
    old: dict[str, np.ndarray]
    pool: dict[str, np.ndarray]
    real: tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
    tonight: dict[str, np.ndarray]

    def requests(self, rows: int) -> list[Request]:
        """The first ``rows`` of tonight with all that drafts them, the pool of the others last."""
        everybody = Index.build(list(self.pool.values()))
        return [Request(user, self.asked[user], (Index.build([self.old[user]], kind="own"), everybody),
                        previous_ids=self.old[user]) for user in list(self.asked)[:rows]]


def prepare(folder: Path, work: Path, settings: Settings, pool: int, rows: int) -> Night:
    """Train the model and write both nights, each where it is not in ``work`` yet.

    pool  users whose texts draft the others'
    rows  test users, at least; more are written where ``likeness`` needs them
    """
    learned, test = data.split(data.load(folder), settings.test_users)
    if not 0 < pool <= len(learned):
        raise ConfigError(f"--pool {pool} must be above 0 and at most {len(learned)}, the users learned from")
    model = training.model(folder, work, settings)
    learned, test = by_digest(learned)[:pool], by_digest(test)[:max(rows, _COMPARED)]
    _LOG.info("%d texts by %s", pool + 2 * len(test), model.name)
    old = texts.written(model, work, {p.user: data.earlier(p) for p in [*learned, *test]})
    asked = {p.user: data.later(p) for p in test}
    return Night(model, texts.encoded(model, asked), {p.user: old[p.user] for p in test},
                 {p.user: old[p.user] for p in learned},
                 (texts.recorded(model, learned), texts.recorded(model, test)),
                 texts.written(model, work, asked))


def by_digest(profiles: Sequence[Profile]) -> list[Profile]:
    """In the order of the ids' SHA-256."""
    return sorted(profiles, key=lambda profile: hashlib.sha256(profile.user.encode()).hexdigest())


def likeness(night: Night) -> dict:
    """How tonight's texts compare with the recorded profiles of the same users.

    distinct: share of different texts, of both nights together where one user has one text. accepted: draft
    tokens a step at 16 nodes, tonight's texts against the other users' alone, no prompts.
    """
    real_pool, real = night.real
    written = [*night.pool.values(), *night.tonight.values()]
    found = {"distinct": round(texts.distinct(written), 4),
             "distinct_real": round(texts.distinct([*real_pool.values(), *real.values()]), 4),
             "accepted": _accepted(night.tonight, night.pool), "accepted_real": _accepted(real, real_pool)}
    found["accepted_ratio"] = round(found["accepted"] / found["accepted_real"], 3)
    found["tokens"] = _median(night.tonight)
    found["tokens_real"] = _median(real)
    return found


def _accepted(some: Mapping[str, np.ndarray], pool: Mapping[str, np.ndarray]) -> float:
    return texts.accepted_per_step(list(some.values()), list(pool.values()))


def _median(some: Mapping[str, np.ndarray]) -> float:
    return float(np.median([len(text) for text in some.values()]))
