"""The plain reference: counts in a pygtrie trie, the blend by its definition, no intervals and no tables."""

import pygtrie

from pools.blend import FLOOR
from pools.live import LIMIT
from pools.tree import SOURCE_LIVE


def trie_of(texts, depth):
    """How often each sequence of up to ``depth`` tokens occurs in ``texts``."""
    trie = pygtrie.Trie()
    for text in texts:
        for start in range(len(text)):
            for end in range(start + 1, min(len(text), start + depth) + 1):
                key = tuple(text[start:end])
                trie[key] = trie.get(key, 0) + 1
    return trie


def followers(trie, context):
    """Counts of the tokens behind ``context``."""
    if not trie.has_subtrie(context):
        return {}
    keys = trie.items(context)
    return {key[-1]: count for key, count in keys if len(key) == len(context) + 1}


def in_row(row, path, order, window):
    """What followed the last ``order`` tokens of row + path inside the row: the nearest LIMIT matches of the
    last token count, and of those the ones that match further back."""
    history = [*row, *path]
    first = max(0, len(row) - window)
    counts, seen = {}, 0
    for p in range(len(row) - 2, first - 1, -1):
        if row[p] != history[-1]:
            continue
        seen += 1
        if seen > LIMIT:
            break
        if p - order + 1 >= first and list(row[p - order + 1 : p + 1]) == history[-order:]:
            counts[row[p + 1]] = counts.get(row[p + 1], 0) + 1
    return counts


def children(row, path, sources, settings, lam):
    """Probability of each token behind row + path. sources: (kind, trie, longest context), nearest first."""
    history = [*row, *path]
    weight = 1.0
    lists = [[] for _ in range(len(sources) + 1)]  # (occurrences, weight, followers) of each source, by order
    for order in range(min(settings.context, len(history)), 0, -1):
        if weight < FLOOR:
            break
        context = tuple(history[-order:])
        live = in_row(row, path, order, settings.window) if settings.live else {}
        total = sum(live.values())
        gain = weight * total / (total + lam(SOURCE_LIVE, order))
        weight -= gain
        lists[0].append((total, gain, live))
        for place, (kind, trie, longest) in enumerate(sources):
            total = trie.get(context, 0) if order <= longest else 0
            gain = weight * total / (total + lam(kind, order))
            weight -= gain
            lists[place + 1].append((total, gain, followers(trie, context) if total else {}))
    shares = {}
    for place, entries in enumerate(lists):
        merged = []  # orders with the same occurrences are one list
        for total, gain, counts in entries:
            if merged and merged[-1][0] == total:
                merged[-1][1] += gain
            else:
                merged.append([total, gain, counts])
        for total, gain, counts in merged:
            if total and (place == 0 or gain >= FLOOR):
                for token, count in counts.items():
                    shares[token] = shares.get(token, 0.0) + gain * count / total
    return shares
