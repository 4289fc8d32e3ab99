"""Zipped input: folders stay folders, and what cannot be unpacked is refused in one line."""

import zipfile

import pyarrow.parquet as pq
import pytest

from dare_job.config.settings import InputSettings
from dare_job.data.input.prepare import read_input
from dare_job.errors import DataError


def zipped(target, entries):
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return InputSettings(path=str(target))


@pytest.mark.parametrize("top, beside", [
    ("", []), ("a/b/", [("README.txt", b"x"), ("__MACOSX/a/b/._interactions.parquet", b"x")])])
def test_folders_of_parquet_files_stay_folders(spark, tmp_path, write_input, top, beside):
    parts = [write_input([(f"u{n}", "i", 1.0, n)], [(f"u{n}", None)], [("i", "t", None)][:1 - n], f"in{n}")
             for n in range(2)]
    entries = [(f"{top}{name}/part-0.parquet" if n == 0 else f"{top}{name}/more/part-0.parquet",
                (parts[n] / f"{name}.parquet").read_bytes())
               for name in ("interactions", "users", "items") for n in range(2)]
    counts = read_input(zipped(tmp_path / "x.zip", entries + beside), tmp_path / "into", spark)
    assert (counts.format, counts.interactions, counts.users, counts.items) == ("parquet", 2, 2, 1)
    events = pq.read_table(tmp_path / "into" / "interactions.parquet")
    assert sorted(events["user_id"].to_pylist()) == ["u0", "u1"]


@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "..\\evil.txt"])
def test_a_name_that_leads_out_is_refused(tmp_path, name):
    settings = zipped(tmp_path / "x.zip", [(name, b"x")])
    with pytest.raises(DataError, match="leads out of the archive"):
        read_input(settings, tmp_path / "a" / "b" / "into", None)
    assert not list(tmp_path.rglob("evil.txt"))


def patched(target, offset_local, offset_central, value):
    """Change one field of the only member's two headers."""
    content = bytearray(target.read_bytes())
    for mark, offset in ((b"PK\x03\x04", offset_local), (b"PK\x01\x02", offset_central)):
        content[content.index(mark) + offset] = value
    target.write_bytes(content)


@pytest.mark.parametrize("offsets, value, part", [((6, 8), 1, "encrypted"), ((8, 10), 97, "not supported")])
def test_encrypted_and_strange_archives_are_refused(tmp_path, offsets, value, part):
    settings = zipped(tmp_path / "x.zip", [("ratings.dat", b"1::2::3::4")])
    patched(tmp_path / "x.zip", *offsets, value)
    with pytest.raises(DataError, match=f"x.zip cannot be unpacked.*{part}"):
        read_input(settings, tmp_path / "into", None)
