"""What a row will cost, as known before it is written: its prompt is read once, its text takes steps.

The unit is a prompt's token. A step of a row takes as long as some eight of them, and writes as many tokens
as a step did yesterday. A row's text is taken to be as long as its own old text, else as the old texts of its
pool's other rows of tonight are on average, else those of its entity type. Whole numbers throughout, so that
sums are the same whatever the partitions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dare_job import knowledge
from dare_job.job import Job
from dare_job.spark.shards import Load
from dare_job.tables import ENTITIES

STEP = 8  # what a step of a row costs
CHARACTERS = 4  # of a prompt's token
PER_STEP = 4.0  # tokens that a step writes, where no earlier night tells


@dataclass(frozen=True)
class Known:
    """What is known of some rows together.

    rows                  all of them; asked: those that have a prompt, the others cost nothing to speak of
    read                  tokens of the prompts
    old_rows, old_tokens  those that have a prompt and an old text
    """

    rows: int
    asked: int
    read: int
    old_rows: int
    old_tokens: int


def per_token(job: Job) -> int:
    """Cost of a token of text, at least 1: by yesterday's steps, where the same mode wrote."""
    decode, sums = job.config.decode, {"tokens": 0, "target_steps": 0}
    if decode.mode == "autoregressive" or decode.nodes == 0 and decode.mode != "beam":
        return STEP
    for entity in ENTITIES:
        old = knowledge.old_folder(job, entity)
        written = knowledge.manifest(old) if old else {}
        if written.get("mode") == decode.mode:
            sums = {name: total + written["totals"][name] for name, total in sums.items()}
    return token_cost(sums["tokens"] / sums["target_steps"] if sums["target_steps"] else PER_STEP)


def token_cost(per_step: float) -> int:
    """Cost of a token where a step writes so many."""
    return max(1, round(STEP / max(1.0, per_step)))


def known(rows: DataFrame, most: int) -> dict[tuple, Known]:
    """By (wave, entity type, pool). most: tokens that a text may have."""
    old, asked = _old(most), _asked()
    found = rows.groupBy("wave", "entity", "pool").agg(
        F.count("*"), F.count_if(asked), F.sum(F.when(asked, _read()).otherwise(0)), F.count(old),
        F.coalesce(F.sum(old), F.lit(0))).collect()
    return {tuple(row[:3]): Known(*row[3:]) for row in found}


def means(known: Mapping[tuple, Known], most: int) -> dict[tuple, int]:
    """Tokens that a row without an old text is taken to get, at least 1, by the same keys.

    most  is assumed where nobody of the entity type has an old text
    """
    whole = {entity: _mean([one for key, one in known.items() if key[1] == entity])
             for entity in {key[1] for key in known}}
    found = {key: _mean([one]) or whole[key[1]] or most for key, one in known.items()}
    return {key: max(1, tokens) for key, tokens in found.items()}


def loads(known: Mapping[tuple, Known], means: Mapping[tuple, int], token: int) -> dict[tuple, Load]:
    """Rows and their cost by the same keys. token: cost of a token of text."""
    return {key: Load(one.rows, one.rows + one.read + token * (
        one.old_tokens + (one.asked - one.old_rows) * means[key])) for key, one in known.items()}


def column(token: int, most: int) -> Column:
    """Cost of a row, at least 1; its ``mean`` is that of ``means``."""
    text = token * F.coalesce(_old(most), F.col("mean"))
    return F.when(_asked(), 1 + _read() + text).otherwise(1).cast("long")


def _asked() -> Column:
    return F.col("prompt").isNotNull() & F.col("error").isNull()


def _read() -> Column:
    """A prompt's tokens, about."""
    return F.floor(F.length("prompt") / CHARACTERS)


def _old(most: int) -> Column:
    """Tokens of a row's old text; null where it has none, or no prompt."""
    return F.when(_asked() & (F.size("own_ids") > 0), F.least(F.size("own_ids"), F.lit(most)))


def _mean(parts: Iterable[Known]) -> int:
    rows, tokens = (sum(getattr(one, name) for one in parts) for name in ("old_rows", "old_tokens"))
    return tokens // rows if rows else 0
