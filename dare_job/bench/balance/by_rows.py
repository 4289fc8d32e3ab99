"""How shards were cut before: by rows alone. Kept to compare with."""

from collections.abc import Mapping

Key = tuple[str, str]


def place(counts: Mapping[Key, int], slots: int, batch_size: int) -> dict[Key, tuple[tuple[int, ...], int]]:
    """(shards, rows of a piece) of each pool: rank r of a pool lies in ``shards[r // piece_rows]``.

    Shards have 16 batches, if need be fewer, so that there are two a slot. A pool of more rows than a shard
    is split into equal pieces; smaller ones of an entity type share one, in the order of their names. Shards
    are numbered from that of the most rows down.
    """
    rows = sum(counts.values())
    target = max(2 * batch_size, min(16 * batch_size, -(-rows // (2 * slots))), -(-rows // (4 * slots)))
    sizes: list[int] = []
    drafts, shared = {}, {}
    for key in sorted(counts):
        count, entity = counts[key], key[0]
        pieces = max(1, round(count / target))
        if count > target:
            piece = -(-count // pieces)
            drafts[key] = tuple(range(len(sizes), len(sizes) + -(-count // piece))), piece
            sizes += [min(piece, count - start) for start in range(0, count, piece)]
            continue
        if entity not in shared or sizes[shared[entity]] + count > target:
            shared[entity] = len(sizes)
            sizes.append(0)
        drafts[key] = (shared[entity],), max(1, count)
        sizes[shared[entity]] += count
    order = sorted(range(len(sizes)), key=lambda shard: (-sizes[shard], shard))
    rank = {shard: number for number, shard in enumerate(order)}
    return {key: (tuple(rank[shard] for shard in shards), piece) for key, (shards, piece) in drafts.items()}
