"""Budgets by histograms in Spark: they choose the rows that the rule on arrays chooses."""

import numpy as np
import pytest
from pyspark.sql import functions as F

from dare_job.refresh import chosen
from dare_job.refresh.choice import BY_VALUE, HASHES, NOT_SAMPLED, OVERDUE, Budget, choose, score_bin
from dare_job.refresh.worth import BINS_PER_TIER, FIRST_BIN
from dare_job.tables import plan_table


@pytest.mark.parametrize("budget", [Budget(), Budget(rows=0), Budget(rows=120), Budget(tokens=9000),
                                    Budget(rows=250, tokens=9000)])
def test_histograms_choose_the_rows_that_the_rule_chooses(spark, budget, monkeypatch):
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 10)
    generator, n = np.random.default_rng(0), 500
    tiers = np.where(generator.random(n) < 0.02, OVERDUE, generator.integers(OVERDUE + 1, BY_VALUE + 1, n))
    hashes, keys = generator.integers(0, HASHES, (2, n))
    sample = np.where((tiers == BY_VALUE) & (keys % 10 == 0), keys, NOT_SAMPLED)
    scores, tokens = generator.lognormal(size=n), generator.integers(10, 90, n)
    ranks = ((tiers * BINS_PER_TIER + FIRST_BIN + score_bin(scores)) * HASHES + hashes).tolist()
    keys = [None if key == NOT_SAMPLED else key for key in sample.tolist()]
    rows = spark.createDataFrame(
        list(zip(ranks, keys, tokens.tolist(), tokens.tolist(), scores.tolist(), strict=True)),
        "rank long, sample int, tokens long, cost long, value double")
    rows = rows.withColumn("held", F.lit(False))
    end, drawn = chosen._sample(rows, budget)
    others = rows.where(~plan_table.is_sampled(F.col("sample"), end))
    table = chosen._histogram(others, F.shiftright("rank", chosen._HASH_BITS))
    cut = chosen._cut(table, others, budget.without(*drawn[:2]))
    found = [(cut is None or rank < cut) or (key is not None and key < end)
             for rank, key in zip(ranks, keys, strict=True)]
    assert found == choose(tiers, scores, hashes, sample, tokens, budget).tolist()
