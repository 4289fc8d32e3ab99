"""The users of the searches: Amazon Beauty with trained models, or a small catalogue with random weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.beams import Query
from dare_job.recommend import task
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender
from dare_job.training.recommender import sequences
from dare_job.training.recommender.evaluation import ndcg, recall

_SIZES = (12, 24, 24, 8)


@dataclass(frozen=True)
class World:
    """A target, draft models by name, and test users with their next interactions.

    Attributes
    ----------
    histories, targets
        Row numbers of each user's items, and of its later items.
    learned
        Leaves of the training users' items.
    """

    recommender: Recommender
    target: Target
    drafts: Mapping[str, tuple[Recommender, Target]]
    catalogue: Catalogue
    histories: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    learned: Sequence[Sequence[int]]

    def queries(self, drafter: str | None = None) -> list[Query]:
        by = self.drafts[drafter][0] if drafter in self.drafts else None
        return [Query(self.recommender.prompt(history), self.catalogue.trie.rows[history].tolist(), (),
                      by.prompt(history) if by else (), user) for user, history in enumerate(self.histories)]

    def quality(self, leaves: np.ndarray, k: int) -> tuple[float, float]:
        """Recall@k and NDCG@k of leaves int64 (R, k)."""
        items = []
        for row in leaves:
            owners = [owner for leaf in row for owner in self.catalogue.owners[leaf]]
            items.append(np.array(owners[:k], np.int64))
        return float(recall(items, self.targets, k).mean()), float(ndcg(items, self.targets, k).mean())


def real(data: Path, target: Path, drafts: Mapping[str, Path], users: int, seed: int, device: str) -> World:
    """A sample of the split's test users.

    Raises
    ------
    ConfigError
        A draft model has other item ids, a folder holds no recommender, or ``data`` has no sequences.
    ModelError
        The parts of a recommender do not fit together.
    DataError
        A file of ``data`` is invalid.
    """
    recommender = Recommender.open(target)
    split = sequences.read(data, recommender.ids)
    tests = split.tests()
    sample = np.random.default_rng(seed).permutation(len(tests))[:users]
    opened = {name: (task.open_drafter(recommender, folder), _loaded(folder, device))
              for name, folder in drafts.items()}
    catalogue = Catalogue.build(recommender.ids, split.popularity(len(recommender.ids.items)).astype(float))
    return World(recommender, _loaded(target, device), opened, catalogue,
                 [tests[user][0] for user in sample], [tests[user][1] for user in sample],
                 [catalogue.trie.rows[row].tolist() for row in split.train if len(row) > 1])


def small(work: Path, users: int, seed: int, device: str) -> World:
    """Random ids, histories and weights: exercises the search; Recall and NDCG mean nothing."""
    random = np.random.default_rng(seed)
    codes = np.stack([random.integers(0, size, 600) for size in _SIZES], 1).astype(np.int32)
    ids = ItemIds(tuple(map(str, range(600))), codes, _SIZES)
    target, draft = _random(work / "target", ids, 64, seed), _random(work / "draft", ids, 32, seed + 1)
    rows = [random.integers(0, 600, 8) for _ in range(users)]
    catalogue = Catalogue.build(ids, np.bincount(np.concatenate(rows), minlength=600).astype(float))
    return World(target, _loaded(target.folder, device),
                 {"random": (draft, _loaded(draft.folder, device))}, catalogue,
                 [row[:-1] for row in rows], [row[-1:] for row in rows],
                 [catalogue.trie.rows[row].tolist() for row in rows])


def _loaded(folder: Path, device: str) -> Target:
    return Target.load(folder, "float32", device, check=False)


def _random(folder: Path, ids: ItemIds, width: int, seed: int) -> Recommender:
    torch.manual_seed(seed)
    first = tuple(int(3 + start) for start in np.cumsum((0, *_SIZES[:-1])))
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=3 + sum(_SIZES), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    model.save_pretrained(folder)
    recommender = Recommender(folder, ids, first, 12, begin=(0,))
    recommender.write(folder)
    return recommender
