"""What history and diff say of published dates."""

import json
import sys

import pytest
from rich.console import Console
from small_dates import publish, row

from dare_job import cli, errors
from dare_job.cli import result
from dare_job.publish.snapshots.compare import side_by_side
from dare_job.publish.snapshots.diff import diff
from dare_job.publish.snapshots.history import history

D1, D2, D3 = "2026-01-01", "2026-01-02", "2026-01-03"


@pytest.fixture
def terminal(monkeypatch):
    """Commands print what they print on a terminal, without colors."""
    monkeypatch.setattr(result, "prints_json", lambda as_json: as_json)


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["dare-job", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_history_has_a_line_for_each_date_and_what_changed(tmp_path, monkeypatch, capsys, terminal):
    publish(tmp_path, D1)
    publish(tmp_path, D2, model={"name": "m2", "hash": "x" * 64}, settings={"decode": {"nodes": 16}})
    publish(tmp_path, D3, entities=["user"], model={"name": "m2", "hash": "x" * 64},
            settings={"decode": {"nodes": 16}}, seconds=None, baseline=None)
    first, second, third = history(tmp_path)
    assert first["changes"] == third["changes"] == []
    assert (first["rows"], first["errors"], first["accepted_per_step"], first["ratio"]) == (2, 0, 2, 3)
    assert (first["status"], first["seconds"]) == ("published", 70.5)
    assert (third["seconds"], third["ratio"]) == (None, None)
    assert second["changes"] == [f"model: m ({'h' * 12}) -> m2 ({'x' * 12})", "decode.nodes: 8 -> 16"]
    assert third["status"] == "items are not published"
    code, out, _ = run(monkeypatch, capsys, "history", "--out", tmp_path)
    heading, one, two, three, *_ = out.splitlines()
    assert code == 0 and heading.split()[0] == "date"
    assert one.split()[:8] == [D1, "2", "2", "0", "2.00", "90", "3.00", "70"] and "70 s" in one
    assert "new model; new decode.nodes" in two and "items are not published" in three
    code, out, _ = run(monkeypatch, capsys, "history", "--out", tmp_path, "--json", "--last", "1")
    assert json.loads(out) == {"out": str(tmp_path), "dates": [third]}


def test_history_names_dates_that_were_begun_and_are_not_published(tmp_path):
    publish(tmp_path, D1)
    for day, stage in ((D2, "generate/_cut.json"), (D3, "plan/_done.json")):
        (tmp_path / f"_work/dt={day}" / stage).parent.mkdir(parents=True)
        (tmp_path / f"_work/dt={day}" / stage).write_text("{}")
    first, second = history(tmp_path)
    assert (first["status"], second["date"], second["rows"]) == ("published", D2, None)
    assert second["status"] == f"not published: `dare-job run --date {D2}` with the same options continues it"


def test_history_goes_on_where_manifests_are_old_or_damaged(tmp_path):
    publish(tmp_path, D1, settings=None)
    for day in (D1, D2):
        space = publish(tmp_path, day) if day == D2 else None
    (space.knowledge("item") / "_manifest.json").write_text("{")
    old = tmp_path / f"knowledge/entity=user/dt={D1}/_manifest.json"
    old.write_text(json.dumps({"date": D1, "run_id": f"run-{D1}", "config": "c1"}))  # of an early version
    first, second = history(tmp_path)
    assert first["rows"] is None and first["accepted_per_step"] is None
    assert second["status"] == "the items' manifest is damaged" and second["rows"] == 1


def test_diff_counts_rows_and_names_settings_and_shows_texts(tmp_path, monkeypatch, capsys, terminal):
    old = [row("a", "likes old films about the sea", D1, 6), row("b", "b", D1), row("c", None, D1, error="e"),
           row("gone", "x", D1)]
    new = [row("a", "likes new films about the sea", D2, 7), row("b", "b", D1), row("c", "c", D2),
           row("new", "x", D2)]
    publish(tmp_path, D1, old)
    publish(tmp_path, D2, new, settings={"decode": {"nodes": 8, "depth": 9}}, tokenizer="t2",
            accepted_per_step=3.5)
    found = diff(tmp_path, D1, D2)
    counts = found["user"]["counts"]
    assert {name: counts[name] for name in ("added", "removed", "changed", "same", "same_written_anew",
                                            "text_gained", "errors_before", "errors_after")} == {
        "added": 1, "removed": 1, "changed": 1, "same": 1, "same_written_anew": 0, "text_gained": 1,
        "errors_before": 1, "errors_after": 0}
    assert found["user"]["lengths"]["mean_change"] == 1 and found["user"]["accepted_per_step"] == [2, 3.5]
    assert [(change["what"], change["before"], change["after"]) for change in found["changes"]] == [
        ("tokenizer", "t", "t2"), ("decode.depth", None, 9)]
    assert found["item"]["examples"] == [{"entity_id": "a", "before": old[0]["knowledge"],
                                          "after": new[0]["knowledge"]}]
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = run(monkeypatch, capsys, "diff", D1, D2, "--out", tmp_path)
    assert code == 0 and "decode.depth: null -> 9" in out and "user:a" in out
    assert "likes [-old-] films about the sea" in out and "likes {+new+} films about the sea" in out
    assert [line.split() for line in out.splitlines() if line.startswith("texts changed")] == [
        ["texts", "changed", "1", "1"]]
    code, out, _ = run(monkeypatch, capsys, "diff", D1, D2, "--out", tmp_path, "--examples", "0", "--json")
    assert json.loads(out)["user"]["examples"] == [] and json.loads(out)["user"]["counts"] == counts


@pytest.mark.parametrize("words", [("history",), ("diff", D1, D2), ("clean", "--keep", "1", "--dry-run")])
def test_in_a_pipe_they_print_json_alone(words, tmp_path, monkeypatch, capsys):
    publish(tmp_path, D1)
    publish(tmp_path, D2)
    code, out, _ = run(monkeypatch, capsys, *words, "--out", tmp_path)
    assert code == 0 and json.loads(out)["out"] == str(tmp_path)
    assert run(monkeypatch, capsys, *words, "--out", tmp_path, "--json")[1] == out


def test_clean_says_on_a_terminal_what_it_removes(tmp_path, monkeypatch, capsys, terminal):
    publish(tmp_path, D1)
    publish(tmp_path, D2)
    code, out, _ = run(monkeypatch, capsys, "clean", "--keep", "1", "--dry-run", "--out", tmp_path)
    assert code == 0 and f"kept {D2}: " in out and "dates kept, " in out.splitlines()[-1]


def test_dates_that_are_not_there_are_named(tmp_path, monkeypatch, capsys):
    publish(tmp_path, D1)
    code, _, err = run(monkeypatch, capsys, "diff", D1, D2, "--out", tmp_path)
    assert code == errors.DataError.exit_code and f"no published user text of {D2}; published: {D1}" in err
    (tmp_path / "empty").mkdir()
    for command in (["history"], ["clean", "--keep", "1"]):
        code, _, err = run(monkeypatch, capsys, *command, "--out", tmp_path / "empty")
        assert code == errors.DataError.exit_code and "has no published" in err
        code, _, err = run(monkeypatch, capsys, *command, "--out", tmp_path / "no")
        assert code == errors.ConfigError.exit_code and "is not a folder" in err


def test_the_output_folder_can_come_from_the_configuration(tmp_path, monkeypatch, capsys):
    publish(tmp_path / "o", D1)
    (tmp_path / "job.yaml").write_text(f"out: {tmp_path / 'o'}\n")
    code, out, _ = run(monkeypatch, capsys, "history", "--config", tmp_path / "job.yaml")
    assert code == 0 and D1 in out


def test_words_that_went_and_came_are_coloured_on_a_terminal():
    left, right = side_by_side("a b c d", "a x c d e", colour=True)
    assert (left.plain, right.plain) == ("a b c d", "a x c d e")
    styles = [[(text.plain[span.start:span.end], span.style) for span in text.spans if span.style]
              for text in (left, right)]
    assert styles == [[("b", "red")], [("x", "green"), ("e", "green")]]
    console = Console(force_terminal=True, color_system="standard", width=40)
    with console.capture() as captured:
        console.print(right)
    assert "\x1b[32mx" in captured.get()
    assert side_by_side("", "new", colour=False)[1].plain == "{+new+}"


def test_texts_that_take_too_long_to_compare_are_marked_as_a_whole():
    loop = " ".join(["loop"] * 400)
    assert [side.plain for side in side_by_side(loop, f"{loop} end", colour=False)] == [
        f"[-{loop}-]", f"{{+{loop} end+}}"]
