"""What a run's lossy verification costs, by texts that it also wrote strictly.

Each measure has a one-sided upper bound at 95 % that holds for every number of rows (``distance``):

    distance   1 - cosine of the sentence vectors, by betting (Waudby-Smith and Ramdas 2024)
    facts      share of the texts that name other facts than the strict one, by Clopper and Pearson (1934)

The rows are a random sample without replacement. Both bounds hold for it, as for one with replacement: values
drawn without replacement are negatively associated (Joag-Dev and Proschan, "Negative association of random
variables", Annals of Statistics 1983), so the expected product of increasing functions is no larger; and a
hypergeometric count has smaller tails than a binomial one. Rows that failed in either way are left out.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dare_job.errors import ConfigError, ModelError
from dare_job.job import Job
from dare_job.models.files import EMBEDDED
from dare_job.observe import progress, redact
from dare_job.publish.features import encoder_files
from dare_job.publish.loss import facts
from dare_job.publish.loss.distance import mean_lower_bound, share_upper_bound
from dare_job.publish.loss.distance import measure as measure_distances
from dare_job.publish.loss.limits import LEVEL, MEASURES

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Twin:
    """The text of a row and its strict text, each with its number of tokens."""

    prompt: str
    text: str
    strict: str
    tokens: tuple[int, int]


def require_encoder(job: Job) -> None:
    """Check that distances can be measured, before anything is generated.

    Without a limit of the distance, a missing encoder is a warning.

    Raises
    ------
    ConfigError, ModelError
        The encoder cannot be used.
    """
    try:
        encoder_files.resolve(job.config.encode.model or EMBEDDED)
    except (ConfigError, ModelError) as error:
        if "distance" in job.config.verify.max_loss:
            raise
        _LOG.warning("the distance of texts from strict texts is not measured: %s", error)


def certify(job: Job, twins: Sequence[Twin], rows: int) -> dict:
    """The record of a run's loss.

    Parameters
    ----------
    rows
        Rows of which the twins are a sample.

    Returns
    -------
    rows, of, level, encoder
        Number of twins, ``rows``, the level of the bounds, and what made the sentence vectors.
    differing
        Share of the twins whose texts differ.
    distance, facts
        ``mean`` and ``bound`` of each measure, None where it could not be measured.
    """
    record = {"rows": len(twins), "of": rows, "level": LEVEL, "encoder": None, "differing": None,
              **dict.fromkeys(MEASURES)}
    if not twins:
        return record
    with progress.doing("comparing the sample with its strict texts"):
        record["differing"] = sum(twin.text != twin.strict for twin in twins) / len(twins)
        record["facts"] = _facts(job, twins)
        try:
            record |= {"distance": _distance(job, twins),
                       "encoder": redact.values(job.config.encode.model or EMBEDDED)}
        except (ConfigError, ModelError) as error:  # ``require_encoder`` has warned
            _LOG.debug("no distance: %s", error)
    return record


def _distance(job: Job, twins: Sequence[Twin]) -> dict:
    folder = encoder_files.resolve(job.config.encode.model or EMBEDDED)

    def encode(texts: list[str]) -> np.ndarray:
        from dare_job.publish.features.encoder import Encoder  # imports torch

        return Encoder(folder, "cpu", job.config.encode.batch_size).encode(texts).vectors

    cosine = measure_distances([(twin.strict, twin.text) for twin in twins],
                               np.array([twin.tokens for twin in twins]), encode).cosine
    bound = 2 * (1 - mean_lower_bound((1 + cosine) / 2, 1 - LEVEL))
    return {"mean": float(1 - cosine.mean()), "bound": bound}


def _facts(job: Job, twins: Sequence[Twin]) -> dict:
    changed = facts.changed([(twin.prompt, twin.strict, twin.text) for twin in twins],
                            job.space.stage("input"))
    return {"mean": changed / len(twins), "bound": share_upper_bound(changed, len(twins), 1 - LEVEL)}
