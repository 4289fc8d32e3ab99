"""Reference of retrieval: counts in a pygtrie trie, and the blend by its definition."""

import pygtrie
from numba import njit

from pools.blend import BACKOFF_ORDERS, MAX_DISTINCT, MIN_WEIGHT
from pools.live import LIMIT
from pools.tree import SOURCE_LIVE, SOURCE_PROMPT


def entry(helper):
    """What Python can call of a compiled function that has no entry of its own."""
    return njit(lambda *arguments: helper(*arguments), error_model="numpy")


def trie_of(texts, depth):
    """Number of occurrences of each sequence of up to ``depth`` tokens in ``texts``."""
    trie = pygtrie.Trie()
    for text in texts:
        for start in range(len(text)):
            for end in range(start + 1, min(len(text), start + depth) + 1):
                key = tuple(text[start:end])
                trie[key] = trie.get(key, 0) + 1
    return trie


def followers(trie, context):
    """Counts of the tokens that follow ``context``."""
    if not trie.has_subtrie(context):
        return {}
    keys = trie.items(context)
    return {key[-1]: count for key, count in keys if len(key) == len(context) + 1}


def in_row(row, path, order, window, prompt):
    """Counts of the tokens after the last ``order`` tokens of row + path, in the row's text and prompt.

    Only the nearest LIMIT matches of the last token count.
    """
    history = [*row, *path]
    first = max(0, len(row) - window)
    counts, matches = ({}, {}), 0
    for p in range(len(row) - 2, first - 1, -1):
        if row[p] != history[-1]:
            continue
        matches += 1
        if matches > LIMIT:
            break
        if p - order + 1 >= first and list(row[p - order + 1 : p + 1]) == history[-order:]:
            kind = counts[p + 1 < prompt]
            kind[row[p + 1]] = kind.get(row[p + 1], 0) + 1
    return counts


def longest_context(row, trie, max_order):
    """Length of the longest suffix of the row that occurs."""
    return max((n for n in range(1, min(max_order, len(row)) + 1) if trie.get(tuple(row[-n:]), 0)), default=0)


def children(row, path, orders, sources, settings, prompt, term):
    """Probability of each token after row + path, and the order of its context in each source.

    orders   order of the context in each source
    sources  (kind, trie, maximum order), nearest first
    term     pseudo-count as a function of (kind, order, number of distinct continuations)
    """
    history = [*row, *path]
    rest = 1.0
    starts = [min(order, settings.context, longest)
              for order, (_, _, longest) in zip(orders, sources, strict=True)]
    read = [[] for _ in sources]  # entries that were read: occurrences, gain, followers, order
    own = []
    for order in range(min(settings.context, len(history)), 0, -1):
        if rest < MIN_WEIGHT:
            break
        context = tuple(history[-order:])
        if order in BACKOFF_ORDERS and settings.live:
            for place, counts in enumerate(in_row(row, path, order, settings.window, prompt)):
                total = sum(counts.values())
                gain = rest * total / (total + term((SOURCE_LIVE, SOURCE_PROMPT)[place], order, len(counts)))
                rest -= gain
                own.append({"total": total, "gain": gain, "followers": counts})
        for place, (kind, trie, _) in enumerate(sources):
            if order != starts[place] and not (order < starts[place] and order in BACKOFF_ORDERS):
                continue
            total, counts = trie.get(context, 0), followers(trie, context)
            distinct = len(counts) + total - sum(counts.values())  # each end of a text counts
            gain = rest * total / (total + term(kind, order, min(distinct, MAX_DISTINCT)))
            rest -= gain
            if not read[place] or read[place][-1]["total"] != total:
                read[place].append({"total": total, "gain": 0.0, "followers": counts, "order": order})
            read[place][-1]["gain"] += gain
    shares, found = {}, {}
    for place, entries in enumerate([own, *read]):
        for entry in entries:
            if place and entry["gain"] < MIN_WEIGHT / 4:
                continue
            for token, count in entry["followers"].items():
                shares[token] = shares.get(token, 0.0) + entry["gain"] * count / entry["total"]
                known = found.setdefault(token, [0] * len(sources))
                if place and not known[place - 1]:
                    known[place - 1] = entry["order"] + 1
    for token, known in found.items():
        for place, (_, trie, _) in enumerate(sources):
            known[place] = known[place] or int(trie.get((token,), 0) > 0)
    return {token: (share, found[token]) for token, share in shares.items()}
