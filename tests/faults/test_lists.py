"""Top-K lists under the faults that texts survive: files, disks, kills and a second run, by real commands."""

import json
import random
import shutil

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_recommender
from cluster_runs import CLUSTER, Run, kill_now, require_refused
from fault_nights import NIGHT, checksums, configured, last_line, leftovers
from small_disk import small_disk

pytestmark = [pytest.mark.spark, pytest.mark.release]
RECOMMEND = ("run", "--from", "recommend", "--to", "recommend")
GREEDY = [("u-greedy", f"i{item}", None, 1_700_000_000 + item) for item in range(40)]  # has taken all


@pytest.fixture(scope="module")
def recommender(tmp_path_factory):
    return tiny_recommender.write(tmp_path_factory.mktemp("recommender"))


@pytest.fixture
def night_of(tmp_path, write_input, recommender):
    """Factory: options of a command, its output and its input, with the settings of ``recommend``."""
    def make(rows=None, name="out", place=None, sections=None, **settings):
        shop, out = write_input(rows or tiny_recommender.interactions()), (place or tmp_path) / name
        (tmp_path / name).mkdir(exist_ok=True)
        given = {"model": str(recommender), "k": 3, "batch_size": 4, "rows_per_commit": 4,
                 "drafter": "transitions", "draft_depth": "all"} | settings
        return configured(tmp_path / name, shop, out, recommend=given, **(sections or {})), out, shop
    return make


def chunks(out) -> list:
    return sorted((out / "_work" / f"dt={NIGHT}" / "recommend").glob("*/chunks/part-*.parquet"))


def lists(out) -> dict[str, list[tuple]]:
    """Each user's items and scores, checked against the manifest; nothing unfinished is there."""
    folder = out / "candidates" / f"dt={NIGHT}"
    manifest, found = json.loads((folder / "_manifest.json").read_text()), {}
    assert manifest["files"].keys() == {path.name for path in folder.glob("*.parquet")}
    table = pa.concat_tables(pq.read_table(folder / name) for name in sorted(manifest["files"]))
    for row in table.to_pylist():
        found.setdefault(row["user_id"], []).append((row["item_id"], row["score"], row["error"]))
    assert len(found) == manifest["counts"]["users"] and leftovers(out) == []
    assert all(len(rows) == 3 or rows[0][2] for rows in found.values())
    assert not (out / "_work" / f"dt={NIGHT}" / "recommend").exists()
    return found


def require_same(found: dict, expected: dict, message: str) -> None:
    """Compare ``lists`` of other batch sizes, which change a score in the last bit."""
    def without_scores(rows_by_user: dict) -> dict:
        return {user: [(item, error) for item, _, error in rows] for user, rows in rows_by_user.items()}

    assert without_scores(found) == without_scores(expected), message
    for user, rows in found.items():
        for (_, score, _), (_, other, _) in zip(rows, expected[user], strict=True):
            assert score == pytest.approx(other, abs=1e-5), (message, user)


def shown(out) -> list:
    return list((out / "candidates").glob("*"))


def served(out) -> dict:
    folder = out / "candidates" / f"dt={NIGHT}"
    return json.loads((folder / "_manifest.json").read_text())["workers"]


def cut_short(path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:len(content) // 2])


@pytest.mark.parametrize(("file", "code", "said"), [
    ("interactions.parquet", 4, "interactions.parquet"),
    ("item_ids.json", 4, "item_ids.json is not valid JSON"),
    ("recommender.json", 6, "recommender.json cannot be read"),
    ("model.safetensors", 6, "holds no weights (*.safetensors): copy the model again")])
def test_a_damaged_input_or_recommender_is_named_and_a_whole_one_serves(
        night_of, recommender, tmp_path, dare_job, file, code, said):
    model = shutil.copytree(recommender, tmp_path / "model")
    options, out, shop = night_of(model=str(model))
    (path,) = [folder / file for folder in (model, shop) if (folder / file).exists()]
    whole = path.read_bytes()
    if file == "model.safetensors":
        path.unlink()
    else:
        cut_short(path)
    ended, line = dare_job(*RECOMMEND, *options)
    assert ended == code and said in last_line(line) and str(path.parent) in last_line(line), line
    assert not shown(out) and leftovers(out) == []
    path.write_bytes(whole)
    if file == "interactions.parquet":  # the others are refused before anything is made
        assert dare_job(*RECOMMEND, *options)[0] == 0
        assert len(lists(out)) == 23
    else:
        assert not (out / "_work" / f"dt={NIGHT}" / "input").exists()


def test_too_many_errors_and_damaged_files_of_the_work_cost_their_own_chunks_alone(night_of, dare_job):
    rows = [*tiny_recommender.interactions(), *GREEDY]
    options, out, _ = night_of(rows, sections={"limits": {"max_error_share": 0.01}})
    code, said = dare_job(*RECOMMEND, *options)
    assert code == 3 and "1 of 24 users got no recommendations" in last_line(said), said
    assert "nothing was published. Most common reasons: 1 x " in last_line(said)
    assert not shown(out)
    tables = {path: pq.read_table(path) for path in chunks(out)}
    failed = [path for path, table in tables.items() if table["error"].null_count < len(table)]
    damaged = next(path for path in tables if path not in failed)
    cut_short(damaged)
    work = damaged.parents[1]
    cut_short(next((work / "users" / "rows").glob("*.parquet")))
    (work / "chunks" / ".part-000009.parquet.x.partial").write_bytes(b"half")
    code, said = dare_job(*RECOMMEND, *options, "--set", "limits.max_error_share=0.5")
    assert code == 0 and f"{damaged} cannot be read and is written again" in said, said
    again = {user for path in (damaged, *failed) for user in tables[path]["user_id"].to_pylist()}
    assert len(failed) == 1 and served(out)["users"] == len(again) < 24
    found = lists(out)
    assert len(found) == 24 and [user for user, (row, *_) in found.items() if row[2]] == ["u-greedy"]


def test_a_read_only_output_is_one_line(night_of, tmp_path, dare_job):
    with small_disk(tmp_path / "disk") as disk:
        options, out, _ = night_of(place=disk.folder)
        out.mkdir()
        disk.read_only(True)
        code, said = dare_job(*RECOMMEND, *options)
        disk.read_only(False)
        assert code == 5 and "Read-only file system" in last_line(said), said
        assert not list(out.iterdir())


@pytest.mark.release
def test_a_full_disk_ends_the_stage_and_the_same_command_ends_the_night(night_of, tmp_path, dare_job):
    with small_disk(tmp_path / "disk") as disk:
        options, out, _ = night_of(tiny_recommender.interactions(60), place=disk.folder, rows_per_commit=1)
        out.mkdir()
        disk.fill(160 << 10)  # for about half of the chunks
        code, said = dare_job(*RECOMMEND, *options)
        assert code == 5 and "No space left on device" in last_line(said), said
        assert str(out) in last_line(said) and not shown(out)
        assert not [name for name in leftovers(out) if name.endswith("staging")]
        assert chunks(out), "no chunk was kept"
        disk.free()
        code, said = dare_job(*RECOMMEND, *options)
        assert code == 0, said
        assert len(lists(out)) == 60 and served(out)["users"] < 60


@pytest.mark.release
def test_damaged_weights_of_a_drafter_are_named(night_of, tmp_path, dare_job):
    drafter = tiny_recommender.write(tmp_path / "drafter", seed=7, width=16)
    cut_short(drafter / "model.safetensors")
    options, out, _ = night_of(drafter=str(drafter))
    code, said = dare_job(*RECOMMEND, *options)
    assert code == 6 and str(drafter) in last_line(said), said
    assert not shown(out) and leftovers(out) == []


@pytest.mark.release
def test_kills_of_executor_and_worker_and_a_second_run_change_no_list(night_of, dare_job):
    rows, seed = tiny_recommender.interactions(users=200), random.randrange(1_000_000)
    small = {"rows_per_commit": 1, "batch_size": 1}
    options, undisturbed, _ = night_of(rows, "undisturbed", rows_per_commit=100, batch_size=32)
    assert dare_job(*RECOMMEND, *options)[0] == 0
    options, out, _ = night_of(rows, sections={"spark": CLUSTER}, **small)
    run, chance, kept = Run([*options, *RECOMMEND[1:]], out), random.Random(seed), {}
    for kind in ("worker", "executor"):
        least = len(kept) + chance.randint(1, 20)
        run.wait_for(lambda least=least: len(chunks(out)) >= least)
        kill_now(run, [kind], chance)
        found = checksums(chunks(out)[0].parent)
        assert found.items() >= kept.items(), f"seed {seed}: written again"
        kept = found
        require_refused(run, dare_job(*RECOMMEND, *options))
    code, said = run.ended()
    assert code == 0, f"seed {seed}: {said[-5000:]}"
    require_same(lists(out), lists(undisturbed), f"seed {seed}")
    assert psutil.wait_procs(list(run.seen), timeout=120)[1] == [], "processes were left behind"
