"""The benches of acceptance: small runs, and what their tables claim of each other."""

import json

import pytest
import typer

from dare_job.bench import acceptance_speed, acceptance_toy


def test_toy(capsys):
    acceptance_toy.main(vocabulary=40, pairs=2, trees=1)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    nodes = [row for row in found if "rate" in row]
    assert {row["rule"] for row in nodes} >= {"rrs", "naive", "k_seq", "priority", "greedy", "spechub"}
    assert all(row["rate"] <= row["optimum"] + 5 * row["error"] + 1e-3 for row in nodes)
    trees = {(row["noise"], row["tree"], row["law"], row["rule"]): row["accepted"]
             for row in found if "accepted" in row}
    assert all(count <= trees[(*where, "traversal")] + 1e-4
               for (*where, rule), count in trees.items() if rule == "rrs")


def test_speed(capsys, monkeypatch):
    """Times are held by the command on a quiet machine, and here but a limit that cannot be met."""
    monkeypatch.setattr(acceptance_speed, "CALLS", 1)
    with pytest.raises(typer.Exit) as ended:
        acceptance_speed.main(vocabulary=500, drafts=3, rows=2, limit_ms=0)
    printed = capsys.readouterr()
    found = json.loads(printed.out.splitlines()[-1])
    assert ended.value.exit_code == 1 and found["limit_ms"] == 0
    assert {row["what"] for row in found["rows"]} == {"optimum", "rate", "draw", "verify"}
    optima = [row for row in found["rows"] if row["what"] == "optimum"]
    told = printed.err.splitlines()
    assert len(told) == len(optima) == 20
    assert f"of {optima[0]['law']} on flat laws took {optima[0]['ms']:g} ms; the limit is 0 ms" in told[0]


def test_only_optima_are_held_to_the_limit():
    rows = [{"what": "optimum", "law": "iid", "laws": "zipf", "ms": 49.9},
            {"what": "optimum", "law": "distinct", "laws": "flat", "ms": 50.0},
            {"what": "draw", "law": "distinct", "ms": 71.0}]
    assert acceptance_speed.LIMIT_MS == 50
    assert acceptance_speed.too_slow(rows, 50) == [
        "the optimum of distinct on flat laws took 50 ms; the limit is 50 ms"]
    assert acceptance_speed.too_slow(rows, 60) == []
