"""The examples of docs/how-to/read-the-output.md run as written, each in a process of its own."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ctr_tables import kinds, source

from dare_job import schemas
from dare_job.publish.features import clusters, write
from dare_job.publish.features.clusters import Codebooks
from dare_job.publish.features.inputs import Origin

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-the-output.md"
JOIN, RECHUB, STREAM, TORCH, SPARK, SKLEARN = re.findall(
    r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
USERS, ITEMS, WITHOUT = 60, 40, 5  # the last users have no text
GROUP = 4  # rows of a row group of features
BOOKS = Codebooks((2, 2), (np.array([[0, 0, 0, 0], [1, 0, 0, 0]], np.float32),
                           np.array([[0, 0, 0, 0.1], [0, 0, 0, -0.1]], np.float32)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the page assumes: features under out/demo, and clicks; joined by the page's first example."""
    folder = tmp_path_factory.mktemp("consumer")
    for entity, count in (("user", USERS - WITHOUT), ("item", ITEMS)):
        written = features(folder / "out/demo/features" / f"entity={entity}" / "dt=2026-01-02", entity[0],
                           kinds(count))
        assert len(written) > 2 and max(file["rows"] for file in written) > GROUP
    source(users=USERS, items=ITEMS).interactions.to_parquet(folder / "clicks.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(JOIN)
    return folder


def features(folder: Path, letter: str, vectors: np.ndarray) -> list[dict]:
    """A table by the writer of the stage encode: several files of several row groups, codebooks beside them.

    Ids follow names, as the stage gives them; the first code of a path is the vector's kind.
    """
    folder.mkdir(parents=True)
    names = sorted(f"{letter}{number}" for number in range(len(vectors)))
    ids = pa.array(range(1, len(names) + 1), pa.int32())
    rows = write.assign_files(pa.table([names, ids], schema=schemas.IDS), GROUP, slots=1)
    numbers = [int(name[1:]) for name in names]
    for name, column in {
            "text_sha256": pa.array([f"{number:064x}" for number in numbers]),
            "vector": pa.array(vectors[numbers].tolist(), pa.list_(pa.float32())),
            "reused": pa.array([False] * len(names))}.items():
        rows = rows.append_column(name, column)
    dim = vectors.shape[1]
    layout = write.Layout(str(folder), "part-0", schemas.features(dim, 2), BOOKS, GROUP, Origin("", "", dim))
    files = [write.write_file(rows.filter(pc.equal(rows["file"], number)), layout)
             for number in rows["file"].unique().to_pylist()]
    clusters.write(folder / clusters.name(BOOKS), BOOKS)
    (folder / "_manifest.json").write_text("{}")
    return pa.concat_tables(files).to_pylist()


def run(example: str) -> dict:
    """The names that an example leaves."""
    names = {"__name__": "example"}
    exec(compile(example, str(PAGE), "exec"), names)  # noqa: S102  the page is ours
    return names


def test_the_join_finds_each_rows_vector_and_leaves_zeros_where_there_is_no_text(folder):
    table = pq.read_table(folder / "train.parquet")
    clicks = source(users=USERS, items=ITEMS).interactions[: len(table)]
    vectors = np.array(table["user_vector"].to_pylist(), np.float32)
    number = clicks["user_id"].str[1:].astype(int).to_numpy()
    known = number < USERS - WITHOUT
    assert np.array_equal(vectors[known], kinds(USERS - WITHOUT)[number[known]])
    assert not vectors[~known].any() and not np.array(table["user"])[~known].any()
    assert np.array_equal(np.array(table["user_cluster"])[known], number[known] % 2 + 1)
    assert pq.ParquetFile(folder / "train.parquet").metadata.row_group(0).num_rows == 1024


def test_histories_hold_the_last_clicks_before_the_row(folder):
    table = pq.read_table(folder / "train.parquet").to_pydict()
    clicks = source(users=USERS, items=ITEMS).interactions
    user = clicks["user_id"].iloc[1500]
    before = [table["item"][row] for row in range(1500)
              if clicks["user_id"].iloc[row] == user and table["label"][row]][-5:]
    assert table["history"][1500] == [0] * (5 - len(before)) + before


def test_a_stream_of_the_features_themselves_gives_each_id_its_vector(folder, monkeypatch):
    monkeypatch.chdir(folder)
    table = run(STREAM)["table"].numpy()
    ids = sorted(f"i{number}" for number in range(ITEMS))
    assert not table[0].any() and np.array_equal(table[1:], kinds(ITEMS)[[int(name[1:]) for name in ids]])


def test_batches_of_a_row_group_stay_in_order_over_files(folder):
    from torch_rechub.data.dataset import ParquetIterableDataset

    path, columns = folder / "out/demo/features/entity=user/dt=2026-01-02", ["id", "vector", "cluster_1"]
    files = sorted(path.glob("part-*.parquet"))
    batches = list(ParquetIterableDataset(files, columns=columns, batch_size=GROUP))
    whole = pq.read_table(path)
    groups = len(whole) // GROUP
    assert [len(batch["id"]) for batch in batches] == [GROUP] * groups + [len(whole) - groups * GROUP]
    for name in columns:
        found = np.concatenate([batch[name].numpy() for batch in batches])
        assert np.array_equal(found, np.array(whole[name].to_pylist(), np.float32)), name


@pytest.mark.parametrize("example", [TORCH, SKLEARN], ids=["torch", "scikit-learn"])
def test_an_example_learns_what_the_vectors_tell(folder, monkeypatch, example):
    monkeypatch.chdir(folder)
    assert run(example)["auc"] > 0.8


def test_torch_rechub_trains_din_and_dcnv2(folder, monkeypatch):
    monkeypatch.chdir(folder)
    auc = run(RECHUB)["auc"]
    assert set(auc) == {"DIN", "DCNv2"} and min(auc.values()) > 0.7


@pytest.mark.spark
@pytest.mark.slow
def test_spark_ml_reads_the_same_folders(folder, monkeypatch, spark):
    monkeypatch.chdir(folder)
    example = SPARK.replace('parquet(f"out/', f'parquet(f"{folder}/out/').replace(
        '"clicks.parquet"', f'"{folder}/clicks.parquet"')  # Java keeps the folder that it was started in
    assert run(example)["auc"] > 0.8


def test_what_the_page_warns_of_is_so(folder, tmp_path):
    """torch-rechub's reader with batches smaller than row groups, and with large ids."""
    from torch_rechub.data.dataset import ParquetIterableDataset

    expected = np.array(pq.read_table(folder / "train.parquet")["user_vector"].to_pylist(), np.float32)
    whole = [batch["user_vector"].numpy() for batch in ParquetIterableDataset(
        [folder / "train.parquet"], columns=["user_vector"], batch_size=1024)]
    assert np.array_equal(np.concatenate(whole), expected)
    parts = ParquetIterableDataset([folder / "train.parquet"], columns=["user_vector"], batch_size=1000)
    try:
        wrong = [batch["user_vector"].numpy() for batch in parts]
        assert any(part.shape[1] != 4 for part in wrong) or (np.concatenate(wrong) != expected).any()
    except ValueError as error:
        assert "reshape" in str(error)
    pq.write_table(pa.table({"id": pa.array([2**24 + 1], pa.int32())}), tmp_path / "large.parquet")
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        list(ParquetIterableDataset([tmp_path / "large.parquet"]))
