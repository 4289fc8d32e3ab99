"""The benches of acceptance: small runs, and what their tables claim of each other."""

import json

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
    monkeypatch.setattr(acceptance_speed, "CALLS", 1)
    acceptance_speed.main(vocabulary=500, drafts=3, rows=2)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["what"] for row in found["rows"]} == {"optimum", "rate", "draw", "verify"}
    assert all(row["ms"] >= 0 for row in found["rows"])
