"""The result of a check: log loss as AUC, with interval and paired test, in the JSON and in the table."""

import io

import numpy as np
import pytest
from ctr_tables import made
from rich.console import Console
from scipy import stats as reference

from dare_job.evaluate.ctr import report
from dare_job.evaluate.ctr.inputs import BASE, Inputs
from dare_job.evaluate.ctr.options import Options
from dare_job.evaluate.ctr.train import Fitted

AUC = {"base": [0.70, 0.71, 0.72, 0.70, 0.71], "strict": [0.74, 0.76, 0.75, 0.74, 0.77]}
LOSS = {"base": [0.61, 0.62, 0.60, 0.61, 0.63], "strict": [0.64, 0.66, 0.65, 0.63, 0.66]}


@pytest.fixture(scope="module")
def found():
    results = {("din", name): [Fitted(auc, loss, 3, 1.0) for auc, loss in
                               zip(AUC[name], LOSS[name], strict=True)] for name in AUC}
    return report.result(Options("sample", {"strict": "out"}, models=["din"]), made(),
                         [Inputs(BASE), Inputs("strict")], results)


@pytest.mark.parametrize("values, mean, interval, lift", [
    (AUC, "auc_mean", "auc_ci95", ""), (LOSS, "logloss_mean", "logloss_ci95", "logloss_")])
def test_both_measures_have_interval_and_paired_test(found, values, mean, interval, lift):
    base, strict = found["rows"]
    expected, theirs = np.array(values["strict"]), reference.ttest_rel(values["strict"], values["base"])
    assert strict[mean] == pytest.approx(expected.mean(), abs=1e-6)
    assert strict[interval] == pytest.approx(
        reference.t.interval(0.95, 4, expected.mean(), reference.sem(expected)), abs=1e-6)
    assert strict[f"{lift}lift"] == pytest.approx(expected.mean() - np.mean(values["base"]), abs=1e-6)
    assert strict[f"{lift}lift_ci95"] == pytest.approx(tuple(theirs.confidence_interval(0.95)), abs=1e-6)
    assert strict[f"{lift}p_value"] == pytest.approx(theirs.pvalue)
    assert base[f"{lift}lift"] is base[f"{lift}lift_ci95"] is base[f"{lift}p_value"] is None
    assert strict["auc"] == AUC["strict"] and strict["logloss"] == LOSS["strict"]


def test_the_table_shows_both_on_one_line_a_set(found):
    console = Console(width=140, file=io.StringIO())
    report.show(found, console)
    lines = console.file.getvalue().splitlines()
    (line,) = [line for line in lines if "strict" in line]
    p_value = reference.ttest_rel(LOSS["strict"], LOSS["base"]).pvalue
    for shown in ("0.7520", "+0.0440", "0.6480", "+0.0340", f"{p_value:.2g}"):
        assert shown in line
