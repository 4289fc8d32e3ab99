"""Groups of entities by attributes: a trie of attribute paths, deeper where a group is too large."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pygtrie

from pools.errors import PoolError

Row = tuple[str, Mapping[str, str | None] | None]  # entity id and its attributes

OTHER = "~other"  # values too rare for a group of their own, and values never seen
NONE = "~none"  # the attribute is missing or empty
WHOLE = "all"  # name of the group of everybody, where no attribute divides them


class AttributeTree:
    """Group of an entity: a path such as ``genre=Drama/age=25-34``.

    The trie maps a path (tuple of components) to its size and to the place in ``order`` of the attribute that
    divides it; None where it is a group.
    """

    def __init__(self, order: Sequence[str], trie: pygtrie.Trie):
        self.order = list(order)
        self._trie = trie
        self._cache: dict[tuple, str | None] = {}

    @classmethod
    def build(
        cls, rows: Iterable[Row], order: Sequence[str], max_size: int, min_size: int = 10
    ) -> "AttributeTree":
        """Divide everybody by the first attribute that tells them apart, then each group of more than
        ``max_size`` entities by the next one, and so on; what the last attribute leaves stays large.

        order     attribute names, the most telling first
        min_size  smaller siblings become one group, ``name=~other``

        Entities that have none of the attributes are left out. Deterministic, whatever the order of rows.
        Raises PoolError for an empty ``order`` or an impossible size.
        """
        return cls.build_counted(((attributes, 1) for _, attributes in rows), order, max_size, min_size)

    @classmethod
    def build_counted(
        cls, counted: Iterable[tuple[Mapping[str, str | None] | None, int]], order: Sequence[str],
        max_size: int, min_size: int = 10
    ) -> "AttributeTree":
        """The same of combinations of attributes, each with the number of entities that have it."""
        if not order or isinstance(order, str):
            raise PoolError("an attribute tree needs a list of attribute names: set group.*_attributes")
        if max_size < 1 or min_size < 0:
            raise PoolError(f"max_size {max_size} and min_size {min_size} must be positive")
        counts: Counter[tuple] = Counter()
        for attributes, count in counted:
            counts[_values(attributes, order)] += count
        members = [(values, count) for values, count in counts.items() if any(v is not None for v in values)]
        tree = cls(order, pygtrie.Trie())
        tree._divide((), members, 0, max_size, min_size)
        return tree

    @property
    def groups(self) -> dict[str, int]:
        """Size of each group, by its path."""
        return {_name(path): size for path, (size, split) in sorted(self._trie.items()) if split is None}

    def group_of(self, attributes: Mapping[str, str | None] | None) -> str | None:
        """Group of an entity, known or new; None without any of the tree's attributes.

        A value that the tree has not seen goes to its rare siblings, else to the largest sibling.
        """
        values = _values(attributes, self.order)
        if values not in self._cache:
            self._cache[values] = self._find(values)
        return self._cache[values]

    def assign(self, rows: Iterable[Row]) -> dict[str, str | None]:
        """Group of each entity id, as ``group_of``."""
        return {identifier: self.group_of(attributes) for identifier, attributes in rows}

    def _find(self, values: tuple) -> str | None:
        if all(value is None for value in values) or not self._trie:
            return None
        path: tuple[str, ...] = ()
        while True:
            _, split = self._trie[path]
            if split is None:
                return _name(path)
            name = self.order[split]
            for candidate in (_component(name, values[split]), f"{name}={OTHER}"):
                if (*path, candidate) in self._trie:
                    path = (*path, candidate)
                    break
            else:
                path = self._largest(path)

    def _largest(self, path: tuple[str, ...]) -> tuple[str, ...]:
        children = [(-size, key) for key, (size, _) in self._trie.items(path) if len(key) == len(path) + 1]
        return min(children)[1]

    def _divide(self, path: tuple, members: list, place: int, max_size: int, min_size: int) -> None:
        size = sum(count for _, count in members)
        while size and (not path or size > max_size) and place < len(self.order):
            parts = _parts(self.order[place], members, place, min_size)
            if len(parts) > 1:
                self._trie[path] = (size, place)
                for component in sorted(parts):
                    self._divide((*path, component), parts[component], place + 1, max_size, min_size)
                return
            place += 1
        if size:
            self._trie[path] = (size, None)


def learn_order(rows: Sequence[Row], labels: Mapping[str, str], max_rows: int = 50_000) -> list[str]:
    """Attribute names by how much a decision tree that predicts ``labels`` uses them, the most used first.

    labels    entity id -> its class, for example the collaborative group; ids without one are not used
    max_rows  rows learned from, at even distances in the order of ids

    Attributes with a value of its own for more than half of their entities (titles, say) are left out: they
    cannot group anything. Attributes that the tree does not use follow by name. Empty without a labelled row.
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
    """Members by their value of one attribute; values of fewer than ``min_size`` entities together."""
    parts: dict[str, list] = {}
    for values, count in members:
        parts.setdefault(_component(name, values[place]), []).append((values, count))
    rare = [key for key, part in parts.items() if sum(count for _, count in part) < min_size]
    if len(rare) > 1:
        merged = [member for key in sorted(rare) for member in parts.pop(key)]
        parts[f"{name}={OTHER}"] = merged
    return parts


def _component(name: str, value: str | None) -> str:
    """One step of a path. Values are escaped, so that no value looks like a border or a special one."""
    if value is None:
        return f"{name}={NONE}"
    text = str(value).replace("%", "%25").replace("/", "%2F").replace("~", "%7E")
    return f"{name}={text}"


def _name(path: tuple[str, ...]) -> str:
    return "/".join(path) or WHOLE
