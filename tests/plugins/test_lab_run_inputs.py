"""``lab decode --prompts OUT``: prompts and earlier texts of a run's output folder."""

import hashlib
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from dare_job import schemas
from dare_job.cli import app
from dare_job.config import settings
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.methods import inputs, published_inputs
from dare_job.evaluate.methods.options import Options
from dare_job.models import embedded_path
from dare_job.models.files import tokenizer_hash
from dare_job.workspace import MANIFEST

TOKENIZER = AutoTokenizer.from_pretrained(embedded_path())
BEFORE, DT = "2026-01-01", "2026-01-02"
NAMES = [f"user:u{n}" for n in range(6)] + [f"item:i{n}" for n in range(4)]
GENERATED = ["user:u1", "user:u2", "user:u4", "item:i0", "item:i3"]


def prompt(name: str) -> str:
    return f"Describe this film.\nTitle: Silent {name.replace(':', ' ')}\nDescription:\n"


def text(name: str, dt: str) -> str:
    return f"A grainy drama film number {name[-1]} of day {dt[-1]}."


def publish(out, dt: str, generated, finish=None) -> None:
    """Texts of a date: those in ``generated`` are of its own run, the others were carried over."""
    for entity in ("user", "item"):
        names = [name for name in NAMES if name.startswith(entity)]
        hashes = {name: hashlib.sha256(prompt(name).encode()).hexdigest() for name in names}
        rows = [{"entity_id": name[5:], "knowledge": text(name, dt), "prompt_sha256": hashes[name],
                 "token_ids": TOKENIZER.encode(text(name, dt), add_special_tokens=False), "run_id": "run",
                 "finish_reason": (finish or {}).get(name, "eos"),
                 "generated_dt": dt if name in generated else BEFORE} for name in names]
        folder = out / "knowledge" / f"entity={entity}" / f"dt={dt}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schemas.KNOWLEDGE), folder / "part-0.parquet")
        (folder / MANIFEST).write_text(json.dumps({"run_id": "run",
                                                   "tokenizer": tokenizer_hash(embedded_path())}))
        plan = out / "_work" / f"dt={dt}" / "plan" / f"entity={entity}"
        plan.mkdir(parents=True)
        planned = [{"entity_id": name[5:], "prompt": prompt(name), "prompt_sha256": hashes[name],
                    "stale": True, "strict": False, "interactions": 3} for name in names]
        pq.write_table(pa.Table.from_pylist(planned, schemas.PLAN), plan / "part-0.parquet")


@pytest.fixture
def out(tmp_path):
    publish(tmp_path / "out", BEFORE, NAMES, {"item:i3": "loop"})
    return tmp_path / "out"


def read(out, count: int):
    return published_inputs.read(out, count, TOKENIZER, embedded_path())


def digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def test_prompts_are_of_texts_that_the_newest_date_generated_and_texts_of_the_date_before(out):
    publish(out, DT, GENERATED)
    rows, earlier, origin = read(out, 100)
    assert [name for name, _ in rows] == sorted(GENERATED, key=digest)
    for name, ids in rows:
        assert TOKENIZER.decode(ids, skip_special_tokens=True) == prompt(name)
    assert set(earlier) == set(NAMES) - {"item:i3"}  # its text was a loop
    assert all(TOKENIZER.decode(ids) == text(name, BEFORE) for name, ids in earlier.items())
    assert origin == f"prompts of {DT}, texts of {BEFORE}"
    few, earlier_of_few, _ = read(out, 2)
    assert [name for name, _ in few] == sorted(GENERATED, key=digest)[:2]
    assert set(earlier_of_few) == set(earlier)


def test_previous_texts_come_before_the_limit_of_the_pool(out, monkeypatch):
    publish(out, DT, GENERATED)
    monkeypatch.setattr(published_inputs, "MAX_POOL_TEXTS", 2)
    rows, earlier, _ = read(out, 100)
    others = sorted(set(NAMES) - set(GENERATED), key=digest)[:2]
    assert set(earlier) == {*GENERATED, *others} - {"item:i3"} and len(rows) == len(GENERATED)


def test_of_one_date_no_row_drafts_from_its_own_text(out):
    rows, earlier, origin = read(out, 3)
    names = {name for name, _ in rows}
    assert len(names) == 3 and set(earlier) == set(NAMES) - {"item:i3"} - names
    assert origin == f"prompts and other texts of {BEFORE}"


def test_a_folder_without_prompts_says_where_they_were(out):
    shutil.rmtree(out / "_work")
    with pytest.raises(DataError, match=f"no text of {BEFORE} has a prompt in _work/dt={BEFORE}/plan"):
        read(out, 3)


def test_dates_that_only_carried_texts_over_are_passed_by(out):
    publish(out, DT, GENERATED)
    publish(out, "2026-01-03", [])
    assert read(out, 3)[2] == f"prompts of {DT}, texts of {BEFORE}"


def test_texts_that_no_run_generated_have_no_prompts(tmp_path):
    publish(tmp_path, DT, [])
    with pytest.raises(DataError, match=f"--prompts {tmp_path}: no run generated the texts in it"):
        read(tmp_path, 3)


def decode(out, *more):
    return CliRunner().invoke(app, ["lab", "decode", "--model", "embedded", "--prompts", str(out),
                                    "--batch", "2", "--repeats", "1", "--max-new-tokens", "24", *more])


def test_decode_drafts_from_the_texts_of_a_run(out, module, tmp_path):
    publish(out, DT, GENERATED)
    module("previous", PREVIOUS)
    done = decode(out, "--methods", "autoregressive,dare", "--set", "decode.nodes=8",
                  "--drafter", f"previous:Previous(file='{tmp_path}/seen.json')", "--json")
    assert not done.exit_code, done.exception
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["prompts"] == len(GENERATED) and all(row["rows_that_differ"] == 0 for row in found["rows"])
    assert found["origin"] == f"prompts of {DT}, texts of {BEFORE} ({len(NAMES) - 1} in the pool)"
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert {name: previous for name, previous in seen} == {
        prompt(name): [text(name, BEFORE), len(NAMES) - 1] if name != "item:i3" else [None, len(NAMES) - 1]
        for name in GENERATED}


def test_pools_can_have_fewer_texts_of_other_rows_and_none_of_their_own(out):
    publish(out, DT, GENERATED)
    options = Options(model="embedded", prompts=out, rows=2, pool_texts=[0, 3])
    found = inputs.read(options, TOKENIZER, settings.load([], []), embedded_path())
    own, config = {text.tobytes() for text in found.previous}, settings.load([], [])
    assert (len(found.pool), found.others) == (len(NAMES) - 1, len(NAMES) - 3)
    assert {text.tobytes() for text in found.pool[-2:]} == own
    for request in found.requests(config, found.shared(3)):
        assert [pool.kind for pool in request.pools] == ["own", "global"] and request.pools[1].texts == 3
    assert all(len(request.pools) == 1 for request in found.requests(config, found.shared(0)))
    assert all(not request.pools for request in found.requests(config, found.shared(), "prompt"))
    with pytest.raises(ConfigError, match="--pool-texts 8: there are 7 texts of other rows"):
        found.shared(8)
    done = decode(out, "--methods", "autoregressive,dare", "--pool-texts", "0,3", "--json")
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["method"] for row in rows] == ["autoregressive", "dare", "dare, 0 texts", "dare, 3 texts"]
    assert all(row["rows_that_differ"] == 0 for row in rows)
    with pytest.raises(ConfigError, match="--pool-texts 3,-1: each must be at least 0"):
        Options(model="embedded", prompts=out, pool_texts=[3, -1])


PREVIOUS = """
import json
from transformers import AutoTokenizer
from dare_job import DraftBatch
from dare_job.models import embedded_path


class Previous:
    \"\"\"Drafts nothing, and saves what each request has.\"\"\"

    def __init__(self, file):
        self.file, self.seen, self.tokenizer = file, {}, AutoTokenizer.from_pretrained(embedded_path())

    def draft(self, requests, *_):
        for request in requests:
            prompt = self.tokenizer.decode(request.prompt_ids, skip_special_tokens=True)
            previous = None if request.previous_ids is None else self.tokenizer.decode(request.previous_ids)
            self.seen[prompt] = [previous, request.pools[-1].texts]
        with open(self.file, "w") as file:
            json.dump(list(self.seen.items()), file)
        return DraftBatch.of([[]] * len(requests))
"""


def test_the_column_of_a_file_does_not_go_with_a_run(out):
    done = decode(out, "--previous-column", "text")
    assert isinstance(done.exception, ConfigError), done.exception
    assert f"--previous-column text: --prompts {out} is the output folder of a run" in str(done.exception)
