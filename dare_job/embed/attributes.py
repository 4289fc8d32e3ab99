"""Vectors of items by their attributes: items of one kind are equal, whoever interacts with them."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.schemas import TRAFFIC
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

DIM = 64  # dimensions, if there are more values than that
_SEPARATOR = ", "  # of the entries of a list, as the input writes it
_MAX_CHARACTERS = 200  # longer values are descriptions
_PAIRS = 1 << 18  # pairs of item and value that are summed at once


def read_items(path: AnyPath) -> tuple[pa.Array, np.ndarray]:
    """Ids (n,) and vectors float32 (n, d) of the items of an ITEMS table that have one."""
    table = paths.parquet_dataset(path, exclude_invalid_files=False).to_table(
        columns=["item_id", "attributes"])
    vectors = attribute_vectors(table["attributes"].chunks)
    known = vectors.any(axis=1)
    return table["item_id"].filter(pa.array(known)).combine_chunks(), vectors[known]


def attribute_vectors(chunks: Iterable[pa.MapArray]) -> np.ndarray:
    """Sum of the vectors of each item's attribute values.

    A value belongs to its attribute: "Drama" as ``genre`` and as ``other_genres`` are two values. A list
    counts as several. Values of a single item or of all items do not count, nor does ``traffic``. Up to DIM
    values are orthogonal. If there are more, their vectors are random signs, which keeps distances within
    some 20 % (Achlioptas, 2003).

    Parameters
    ----------
    chunks
        Attributes of n items together.

    Returns
    -------
    float32 (n, d)
        d is at most DIM. Zeros for items without a value that counts, and for all items if those are more
        than half of them. Equal on every machine.
    """
    parts, items, count = [], [np.zeros(0, np.int64)], 0
    for chunk in chunks:
        item, values = _values(chunk)
        parts.append(values)
        items.append(count + item)
        count += len(chunk)
    encoded = pa.chunked_array(parts, pa.large_string()).combine_chunks().dictionary_encode()
    number = max(len(encoded.dictionary), 1)
    pairs = np.unique(np.concatenate(items) * number + encoded.indices.to_numpy())
    item, value = np.divmod(pairs, number)
    owners = np.bincount(value, minlength=number)
    kept = (owners > 1) & (owners < count)
    item, value = item[kept[value]], (np.cumsum(kept) - 1)[value[kept[value]]]
    if 2 * len(np.unique(item)) < count:  # too few for histories
        item = item[:0]
    table = _table(encoded.dictionary.filter(pa.array(kept[:len(encoded.dictionary)])).to_pylist())
    vectors = np.zeros((count, table.shape[1]), np.float32)
    for start in range(0, len(item), _PAIRS):
        owner, first = np.unique(item[start:start + _PAIRS], return_index=True)
        vectors[owner] += np.add.reduceat(table[value[start:start + _PAIRS]], first)
    return vectors


def _values(maps: pa.MapArray) -> tuple[np.ndarray, pa.LargeStringArray]:
    """Number of the item, and name and value, of each value of a chunk."""
    offsets = maps.offsets.to_numpy()
    names, values = (part[offsets[0]:offsets[-1]] for part in (maps.keys, maps.items))
    owner = np.repeat(np.arange(len(maps)), np.diff(offsets))
    usable = pc.and_(pc.not_equal(names, TRAFFIC), pc.less_equal(pc.utf8_length(values), _MAX_CHARACTERS))
    usable = pc.fill_null(usable, False)
    listed = pc.split_pattern(values.filter(usable), _SEPARATOR)
    place = pc.list_parent_indices(listed)
    texts = pc.binary_join_element_wise(names.filter(usable).take(place), listed.flatten(), "=")
    return owner[usable.to_numpy(zero_copy_only=False)][place.to_numpy()], texts.cast(pa.large_string())


def _table(values: Sequence[str]) -> np.ndarray:
    """Vectors float32 (k, d) of values (k,)."""
    if len(values) <= DIM:
        return np.eye(len(values), dtype=np.float32)
    digests = b"".join(hashlib.blake2b(value.encode(), digest_size=DIM // 8).digest() for value in values)
    bits = np.unpackbits(np.frombuffer(digests, np.uint8)).reshape(len(values), DIM)
    return 2 * bits.astype(np.float32) - 1
