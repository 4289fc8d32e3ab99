"""Groups of entities by attributes: a trie of attribute paths that splits groups above a maximum size."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pygtrie

from pools import PoolError

OTHER = "~other"  # values below the minimum group size
NONE = "~none"  # the attribute is missing or empty
WHOLE = "all"  # name of the only group if no attribute divides the entities


class AttributeTree:
    """Maps attributes to a group, a path such as ``genre=Drama/age=25-34``.

    The trie maps a path (tuple of components) to its size and the position in ``order`` of the attribute that
    splits it; None if the path is a group.
    """

    def __init__(self, order: Sequence[str]):
        self.order = list(order)
        self._trie = pygtrie.Trie()

    @classmethod
    def build(cls, counted: Iterable[tuple[Mapping[str, str | None] | None, int]], order: Sequence[str],
              max_size: int, min_size: int = 10) -> "AttributeTree":
        """Split the entities by the first attribute that distinguishes them, then each group that is too
        large by the next attribute, and so on. After the last attribute, groups may exceed ``max_size``.

        Entities without any of the attributes are skipped. The result does not depend on the order of
        ``counted``.

        Parameters
        ----------
        counted
            Combinations of attributes with the number of entities of each.
        order
            Attribute names, the most informative first.
        max_size
            Number of entities above which a group is split.
        min_size
            Smaller siblings are merged into one group, ``name=~other``.

        Raises
        ------
        PoolError
            ``order`` is empty or a size is invalid.
        """
        if not order or isinstance(order, str):
            raise PoolError("an attribute tree needs a list of attribute names: set group.*_attributes")
        if max_size < 1 or min_size < 0:
            raise PoolError(f"max_size {max_size} must be at least 1, and min_size {min_size} at least 0")
        counts: Counter[tuple] = Counter()
        for attributes, count in counted:
            counts[_values(attributes, order)] += count
        members = [(values, count) for values, count in counts.items() if any(v is not None for v in values)]
        tree = cls(order)
        tree._split((), members, 0, max_size, min_size)
        return tree

    def group_of(self, attributes: Mapping[str, str | None] | None) -> str | None:
        """Group of an entity, which may be new; None if it has none of the tree's attributes.

        An unknown value is assigned to the group of rare siblings, else to the largest sibling.
        """
        values = _values(attributes, self.order)
        if all(value is None for value in values) or not self._trie:
            return None
        path: tuple[str, ...] = ()
        while (split := self._trie[path][1]) is not None:
            name = self.order[split]
            candidates = (*path, _component(name, values[split])), (*path, f"{name}={OTHER}")
            path = next((child for child in candidates if child in self._trie), None) or self._largest(path)
        return _name(path)

    def _largest(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The largest child of a path; of equal ones the first by name."""
        children = [(-size, key) for key, (size, _) in self._trie.items(path) if len(key) == len(path) + 1]
        return min(children)[1]

    def _split(self, path: tuple, members: list, place: int, max_size: int, min_size: int) -> None:
        size = sum(count for _, count in members)
        while size and (not path or size > max_size) and place < len(self.order):
            parts = _parts(self.order[place], members, place, min_size)
            if len(parts) > 1:
                self._trie[path] = size, place
                for component, part in parts.items():
                    self._split((*path, component), part, place + 1, max_size, min_size)
                return
            place += 1
        if size:
            self._trie[path] = size, None


def learn_order(rows: Sequence[tuple[str, Mapping[str, str | None] | None]], labels: Mapping[str, str],
                max_rows: int = 50_000) -> list[str]:
    """Order attribute names by their importance in a decision tree that predicts ``labels``.

    Attributes with more distinct values than half of their entities (titles, for example) are left out,
    because they cannot form groups. Ties are ordered by name.

    Parameters
    ----------
    rows
        Entity ids with their attributes.
    labels
        Class by entity id, for example the collaborative group; ids without a label are not used.
    max_rows
        Maximum number of rows to learn from, at even distances in the order of ids.

    Returns
    -------
    list of str
        Attribute names, most important first; empty if no row has a label.
    """
    import numpy as np
    from sklearn.tree import DecisionTreeClassifier

    labelled = sorted(((i, a) for i, a in rows if a and labels.get(i) is not None), key=lambda row: row[0])
    if len(labelled) > max_rows:
        labelled = [labelled[len(labelled) * i // max_rows] for i in range(max_rows)]
    columns: list[np.ndarray] = []
    owners: list[str] = []
    names = sorted({name for _, attributes in labelled for name in attributes})
    usable = []
    for name in names:
        values = [attributes.get(name) or None for _, attributes in labelled]
        counts = Counter(value for value in values if value is not None)
        if not counts or len(counts) > max(2, counts.total() / 2):
            continue
        usable.append(name)
        array = np.array([value if value is not None else "" for value in values], dtype=object)
        for value, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:32]:
            columns.append(array == value)
            owners.append(name)
    if not columns:
        return usable
    classes = np.array([str(labels[i]) for i, _ in labelled])
    leaf = max(1, len(labelled) // 200)
    model = DecisionTreeClassifier(max_depth=10, min_samples_leaf=leaf, random_state=0)
    model.fit(np.stack(columns, axis=1), classes)
    used = dict.fromkeys(usable, 0.0)
    for owner, importance in zip(owners, model.feature_importances_, strict=True):
        used[owner] += float(importance)
    return sorted(usable, key=lambda name: (-used[name], name))


def _values(attributes: Mapping[str, str | None] | None, order: Sequence[str]) -> tuple:
    if not attributes:
        return (None,) * len(order)
    return tuple(attributes.get(name) or None for name in order)


def _parts(name: str, members: list, place: int, min_size: int) -> dict[str, list]:
    """Members by their value of one attribute; values with fewer than ``min_size`` entities are merged."""
    parts: dict[str, list] = {}
    for values, count in members:
        parts.setdefault(_component(name, values[place]), []).append((values, count))
    rare = [key for key, part in parts.items() if sum(count for _, count in part) < min_size]
    if len(rare) > 1:
        merged = [member for key in sorted(rare) for member in parts.pop(key)]
        parts[f"{name}={OTHER}"] = merged
    return parts


def _component(name: str, value: str | None) -> str:
    """One component of a path. Values are escaped, so that none looks like a separator or a special value."""
    if value is None:
        return f"{name}={NONE}"
    text = str(value).replace("%", "%25").replace("/", "%2F").replace("~", "%7E")
    return f"{name}={text}"


def _name(path: tuple[str, ...]) -> str:
    return "/".join(path) or WHOLE
