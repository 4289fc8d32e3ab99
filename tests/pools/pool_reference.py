"""The plain reference: counts in a pygtrie trie, the blend by its definition, no intervals and no tables."""

import pygtrie

from pools.blend import FLOOR, MOST_DIFFERENT, RUNGS
from pools.live import LIMIT
from pools.tree import SOURCE_LIVE, SOURCE_PROMPT


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


def in_row(row, path, order, window, prompt):
    """What followed the last ``order`` tokens of row + path inside the row: in its text, and in its prompt.

    The nearest LIMIT matches of the last token count, and of those the ones that match further back.
    """
    history = [*row, *path]
    first = max(0, len(row) - window)
    counts, seen = ({}, {}), 0
    for p in range(len(row) - 2, first - 1, -1):
        if row[p] != history[-1]:
            continue
        seen += 1
        if seen > LIMIT:
            break
        if p - order + 1 >= first and list(row[p - order + 1 : p + 1]) == history[-order:]:
            kind = counts[p + 1 < prompt]
            kind[row[p + 1]] = kind.get(row[p + 1], 0) + 1
    return counts


def longest_context(row, trie, most):
    """The longest of the row's last contexts that occurs."""
    return max((n for n in range(1, min(most, len(row)) + 1) if trie.get(tuple(row[-n:]), 0)), default=0)


def children(row, path, orders, sources, settings, prompt, term):
    """Of each token behind row + path: its probability, and the order that it is looked up with by source.

    orders   the context's order in each source
    sources  (kind, trie, longest context), nearest first
    term     of (kind, order, different continuations): what a count is divided by, beside itself
    """
    history = [*row, *path]
    rest = 1.0
    starts = [min(order, settings.context, longest)
              for order, (_, _, longest) in zip(orders, sources, strict=True)]
    read = [[] for _ in sources]  # what was read: dicts of occurrences, gain, followers, order
    own = []
    for order in range(min(settings.context, len(history)), 0, -1):
        if rest < FLOOR:
            break
        context = tuple(history[-order:])
        if order in RUNGS and settings.live:
            for place, counts in enumerate(in_row(row, path, order, settings.window, prompt)):
                total = sum(counts.values())
                gain = rest * total / (total + term((SOURCE_LIVE, SOURCE_PROMPT)[place], order, 0))
                rest -= gain
                own.append({"total": total, "gain": gain, "followers": counts})
        for place, (kind, trie, _) in enumerate(sources):
            if order != starts[place] and not (order < starts[place] and order in RUNGS):
                continue
            total, counts = trie.get(context, 0), followers(trie, context)
            different = len(counts) + total - sum(counts.values())  # each end of a text is another one
            gain = rest * total / (total + term(kind, order, min(different, MOST_DIFFERENT)))
            rest -= gain
            if not read[place] or read[place][-1]["total"] != total:
                read[place].append({"total": total, "gain": 0.0, "followers": counts, "order": order})
            read[place][-1]["gain"] += gain
    shares, found = {}, {}
    for place, entries in enumerate([own, *read]):
        for entry in entries:
            if place and entry["gain"] < FLOOR / 4:
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
