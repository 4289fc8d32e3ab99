"""The bench of pools: from nothing to its tables on a few rows, and what they are made of."""

import json
from types import SimpleNamespace

import numpy as np
import profile_files
import pytest
import torch
from typer.testing import CliRunner

from dare_job.bench.cli import app
from dare_job.bench.pools import compare, figures
from dare_job.bench.pools import pools as pools_pools
from dare_job.bench.pools.compare import Options
from dare_job.bench.pools.measure import Bench, Budget, PublishedDrafter, along, distance
from dare_job.bench.pools.pools import BLEND, CRP, GLOBAL, GROUP, GRP, OWN, PLAIN, RRP, Cell, Pools
from dare_job.bench.profiles import data, train, two_dates
from dare_job.bench.profiles.two_dates import TwoDates
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError
from dare_job.models.files import resolve

TEXT_TOKENS = 40
SIZES = (5, 10)
LINE = {"block", "pool", "retrieval", "rule", "pool_texts", "accepted_per_step", "retrieval_us_per_step",
        "retrieval_ms_per_text", "retrieval_share", "tokens_per_s", "ratio_to_baseline", "ratio_by_processor",
        "mean_tokens", "seconds_per_text", "relaxed_share", "edit_distance", "differ", "cut"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    profile_files.write(root)
    return root


@pytest.fixture(scope="module")
def short():
    """Models of few tokens a text, trained on few, by one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_threads", lambda count: None)
        patch.setattr(train, "TEXT_TOKENS", TEXT_TOKENS)
        patch.setattr(train, "_BATCH_TOKENS", 512)
        yield train.Settings(steps=2, test_users=10)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


def invoke(folder, work):
    return CliRunner().invoke(app, [
        "pools", "--data", str(folder), "--work", str(work), "--sizes", "5,10", "--group", "10",
        "--pool", "25", "--rows", "2", "--repeats", "2", "--nodes", "6", "--tokens", "12", "--steps", "2",
        "--test-users", "10"])


@pytest.fixture(scope="module")
def stopped(folder, work, short):
    """Files of the blocks that a run from nothing had measured when it was stopped in its fourth one."""
    measure, blocks = Bench.block, []

    def stops(bench, cells):
        blocks.append(cells)
        if len(blocks) == 4:
            raise KeyboardInterrupt
        return measure(bench, cells)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "block", stops)
        assert invoke(folder, work).exit_code != 0
    kept = {path: path.read_bytes() for path in (work / "pools").iterdir()}
    assert len(kept) == 3
    return kept


@pytest.fixture(scope="module")
def dates(folder, work, short, stopped):
    return two_dates.prepare(folder, work, short, pool=25, rows=3)


@pytest.fixture(scope="module")
def pools(folder, work, dates):
    return Pools(dates, pools_pools.user_vectors(data.load(folder), work))


@pytest.mark.release
def test_a_stopped_run_goes_on_and_ends_with_its_figures(folder, work, short, stopped, monkeypatch):
    measure, measured = Bench.block, []
    monkeypatch.setattr(Bench, "block", lambda *args: measured.append(args) or measure(*args))
    monkeypatch.setattr(train, "train", lambda *_: pytest.fail("trained again"))
    result = invoke(folder, work)
    assert result.exit_code == 0, result.output
    assert len(measured) == 7  # five blocks, twice
    assert all(path.read_bytes() == content for path, content in stopped.items())
    found = json.loads(result.stdout.splitlines()[-1])
    check_rows(found["rows"])
    check_comparisons(found["comparisons"])
    assert 0 < found["texts"]["distinct"] <= 1
    measured.clear()
    again = json.loads(invoke(folder, work).stdout.splitlines()[-1])
    assert not measured and again == found


def check_rows(rows):
    expected = [(block, cell.pool, cell.retrieval, cell.named)
                for block, some in pools_pools.blocks(SIZES, 25, 10).items() for cell in some]
    assert [(row["block"], row["pool"], row["retrieval"], row["rule"]) for row in rows] == expected
    for row in rows:
        assert set(row) - {"accepted_along", "retrieval_median_us"} == LINE
        assert row["tokens_per_s"] > 0 and row["mean_tokens"] <= 12
        assert 0 <= row["cut"] <= 2 and (row["mean_tokens"] == 12 or row["cut"] < 2)
        if row["rule"] == "autoregressive decoding":
            assert row["ratio_to_baseline"] == row["ratio_by_processor"] == 1
            assert row["accepted_per_step"] == 0 and "accepted_along" not in row
        elif row["rule"] == "strict":
            assert row["edit_distance"] == row["differ"] == row["relaxed_share"] == 0
            assert row["retrieval_median_us"] > 0
        else:
            assert "accepted_along" not in row and (row["differ"] == 0) == (row["edit_distance"] == 0)
        assert row["retrieval_us_per_step"] > 0 and 0 < row["retrieval_share"] < 1
    by = {(row["block"], row["pool"], row["retrieval"], row["rule"]): row for row in rows}
    for size in SIZES:
        assert by[f"size-{size}", GRP, "blend", "strict"]["pool_texts"] == size
        alike, random = (by[f"size-{size}", pool, "blend", "strict"] for pool in (CRP, RRP))
        assert alike["pool_texts"] == random["pool_texts"] > 0
    assert by["size-25", GRP, "blend", "strict"]["pool_texts"] == 25


def check_comparisons(found):
    named = {(line["block"], line["of"], line["over"]) for line in found}
    assert {("size-5", CRP, RRP), ("size-10", f"all users' {GRP}", CRP), ("sources", BLEND, GLOBAL),
            ("size-25", GRP, f"{GRP}, published rule")} <= named
    assert all(line["ratio_ci95"][0] <= line["ratio"] <= line["ratio_ci95"][1] for line in found)


def test_interactions_are_those_before_the_last(folder):
    profiles = data.load(folder)
    pairs = pools_pools.interactions(profiles)
    places = {user: place for place, user in enumerate(pairs.users.to_pylist())}
    for profile in profiles[:5]:
        titles = {pairs.items[i].as_py() for i in pairs.item[pairs.user == places[profile.user]]}
        assert titles == set(profile.titles[:-data.LATER])
    assert (np.diff(pairs.user) >= 0).all()


@pytest.mark.release
def test_vectors_are_learned_once(folder, work, pools, monkeypatch):
    monkeypatch.setattr(pools_pools.lightgcn, "train", lambda *_, **__: pytest.fail("learned again"))
    assert len(pools_pools.user_vectors(data.load(folder), work)) == profile_files.USERS - 1


def test_groups_hold_who_is_near_and_rows_join_the_nearest():
    rng = np.random.default_rng(0)
    centres = np.array([[0, 9], [9, 0], [-9, -9]], np.float32)
    belongs = np.arange(30) % 3
    pool = centres[belongs] + rng.normal(0, 0.1, (30, 2)).astype(np.float32)
    found = pools_pools.cluster(pool, centres, size=10)
    assert all(len(set(found.members[belongs == c])) == 1 for c in range(3))
    assert found.routes.tolist() == [found.members[c] for c in range(3)]
    other = pools_pools.shuffled(found, seed=1)
    assert np.bincount(other.members).tolist() == [10, 10, 10] and (other.routes == found.routes).all()
    assert (other.members != found.members).any()


@pytest.mark.release
def test_pools_are_what_their_names_say(dates, pools):
    user = next(iter(dates.prompts))
    assert [[index.kind for index in pools.of(kind, 10)[user]] for kind in (OWN, GROUP, GLOBAL, BLEND)] == [
        ["own"], ["collaborative"], ["global"], ["own", "collaborative", "global"]]
    assert pools.of(GLOBAL, 10)[user][0].texts == 25 and pools.of(GRP, 10)[user][0].texts == 10
    assert pools.of(GROUP, 10)[user] == pools.of(CRP, 10)[user]
    assert pools.of(OWN, 10)[user][0].token_count == len(dates.previous[user])


@pytest.mark.release
@pytest.mark.parametrize("retrieval", [pools_pools.BLENDED, pools_pools.PUBLISHED])
def test_drafting_along_a_text_takes_the_steps_of_decoding_it(dates, pools, retrieval):
    """Each text is 1 + accepted + steps; a cut text's last draft stands in for the model's own token."""
    target, bench_pools = Target.load(dates.model, device="cpu"), pools.of(GRP, 25)
    bench = Bench(target, pools, dates.prompts, dates.texts, 3, Budget(6, TEXT_TOKENS))
    cell = Cell(GRP, 25, retrieval)
    plain, figured = bench.block([PLAIN, cell])
    users = list(dates.prompts)[:3]
    counts = np.array(figured["along"][:3])
    assert plain["tokens"] == figured["tokens"] == sum(len(dates.texts[user]) for user in users)
    assert abs(counts[:, 1].sum() - figured["steps"]) <= 1  # near its end a row's tree is no deeper than it
    assert abs(counts[:, 0].sum() - figured["accepted"]) <= len(users) + 1
    assert figured["accepted"] > 0 and figured["differ"] == 0
    engine = Engine(target, EngineSettings(max_new_tokens=TEXT_TOKENS, batch_size=1, nodes=6, score="never"),
                    bench._drafter(cell))
    first = next(iter(engine.run([Request(users[0], dates.prompts[users[0]], bench_pools[users[0]])])))
    assert first.token_ids.tolist() == dates.texts[users[0]].tolist()


@pytest.mark.release
def test_the_published_rule_drafts_each_row_from_its_own_pool(pools, dates):
    users = list(dates.prompts)[:2]
    requests = [Request(user, dates.prompts[user], pools.of(OWN, 10)[user]) for user in users]
    known = [dates.previous[user][:2] for user in users]
    found = PublishedDrafter(4, 12).draft(requests, np.stack(known), np.full(2, 2, np.int32),
                                          np.array([4, 0], np.int32), np.full(2, 12, np.int32))
    assert found.sizes.tolist() == [4, 0]
    assert found.tokens[0, 0] in dates.previous[users[0]] and found.parents[0, 0] == -1
    whole = along(PublishedDrafter(4, 12), requests, [dates.previous[user] for user in users], 4)
    assert all(accepted + steps in (len(dates.previous[user]) - 1, len(dates.previous[user]))
               for (accepted, steps), user in zip(whole["along"], users, strict=True))


@pytest.mark.parametrize("changed", ["prompts", "previous", "pool", "texts", "vectors", "penalty"])
def test_kept_blocks_are_those_of_the_same_texts_vectors_and_penalty(changed, tmp_path, monkeypatch):
    class Measurer:
        calls = 0

        def __init__(self, *_):
            pass

        def block(self, cells):
            Measurer.calls += 1
            return [{} for _ in cells]

    def measure(**changes):
        def ids(name, *users):
            return {user: np.arange(changes.get(name, 3), dtype=np.int32) for user in users}

        dates = TwoDates(resolve("embedded"), ids("prompts", "a"), ids("previous", "a"),
                         ids("pool", "b", "c"), ids("texts", "a"))
        vectors = {user: np.full(2, changes.get("vectors", 0), np.float32) for user in "abc"}
        cells = compare.Cells(sizes=(1,), group=1)
        budget = Budget(4, 8, changes.get("penalty"))
        compare._measure(dates, Pools(dates, vectors), cells, tmp_path, "float32", budget)
        return Measurer.calls

    monkeypatch.setattr(compare, "Bench", Measurer)
    monkeypatch.setattr(Target, "load", lambda *_, **__: SimpleNamespace(device=torch.device("cpu")))
    assert measure() == measure() == 4
    assert measure(**{changed: 4}) == 8


def test_times_are_medians_and_ratios_of_the_same_repeat():
    def measured(seconds):
        return {"rows": 1, "tokens": 10, "steps": 4, "accepted": 5, "relaxed": 0, "retrieval": 0.1,
                "seconds": seconds, "processor": seconds, "edit_distance": 0.0, "differ": 0,
                "pool_texts": 3.0, "cut": 0}

    cell = Cell(GRP, 3, rule="relaxed")
    line = figures._row("size-3", cell, [
        {PLAIN: measured(8.0), cell: measured(2.0)}, {PLAIN: measured(30.0), cell: measured(10.0)},
        {PLAIN: measured(2.0), cell: measured(1.0)}])
    assert line["ratio_to_baseline"] == 3 and line["tokens_per_s"] == 5 and line["accepted_per_step"] == 1.25
    assert line["retrieval_us_per_step"] == 25_000 and line["retrieval_share"] == 0.05
    assert line["retrieval_ms_per_text"] == 100


def test_the_tables_say_what_retrieval_takes_strict_and_relaxed(monkeypatch):
    """Figure 2 as a share and per step, table 3 per text too, of relaxed rows as of strict ones."""
    tables = []
    monkeypatch.setattr(figures, "print_table",
                        lambda title, rows, columns=(): tables.append((title, rows, columns)))
    sums = {"rows": 2, "tokens": 20, "steps": 4, "accepted": 5, "relaxed": 0, "seconds": 2.0,
            "processor": 2.0, "edit_distance": 0.0, "differ": 0, "pool_texts": 3.0, "cut": 0}
    taken = {PLAIN: 0.0, Cell(GRP, 3): 0.3, Cell(GRP, 3, rule="relaxed"): 0.5}
    repeats = [{cell: {**sums, "retrieval": seconds} for cell, seconds in taken.items()}]
    rows = figures.rows({block: repeats for block in ("size-3", pools_pools.SOURCES, pools_pools.RULES)})
    figures.show(rows, [{"of": BLEND, "over": GLOBAL}])
    (first, strict, _), (second, sizes, columns), (_, sources, _), *_ = tables
    assert first.endswith("(figure 2)") and second.endswith("(table 3)")
    assert [(row["retrieval_us_per_step"], row["retrieval_share"]) for row in strict] == [(75_000, 0.15)]
    for table in (sizes, sources):
        assert [row["rule"] for row in table] == ["autoregressive decoding", "strict", "relaxed k=2 p=0.1"]
        assert [row["retrieval_us_per_step"] for row in table] == [0, 75_000, 125_000]
        assert [row["retrieval_share"] for row in table] == [0, 0.15, 0.25]
    assert "retrieval_ms_per_text" in columns
    assert [row["retrieval_ms_per_text"] for row in sizes] == [0, 150, 250]


def test_rules_are_named_with_what_they_read():
    assert Cell(GRP, 1, rule="top_k", k=4).named == "top_k k=4" and Cell(GRP, 1).named == "strict"
    assert Cell(GRP, 1, rule="threshold", p=0.3).named == "threshold p=0.3"
    named = [cell.named for cell in pools_pools.blocks((), 9, 5)[pools_pools.RULES]]
    assert {"strict", "top_k k=2", "threshold p=0.1", "relaxed k=2 p=0.1", "literal k=2 p=0.1"} <= set(named)
    assert len(set(named)) == len(named)


def test_distance_can_be_counted_by_hand():
    assert distance(np.array([1, 2, 3, 4]), np.array([1, 3, 4])) == 0.25
    assert distance(np.array([1, 2]), np.array([3, 4])) == 1
    assert distance(np.zeros(0, np.int64), np.zeros(0, np.int64)) == 0


@pytest.mark.parametrize(("arguments", "message"), [
    ({"sizes": (50, 1000)}, "--sizes 1000"), ({"group": 0}, "--group 0"), ({"rows": 501}, "--rows 501"),
    ({"nodes": 0}, "--nodes 0"), ({"repeats": 0}, "--repeats 0")])
def test_impossible_options_are_named(folder, arguments, message):
    with pytest.raises(ConfigError, match=message):
        Options(folder, **arguments)
