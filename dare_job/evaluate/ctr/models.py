"""DIN and DCNv2 of torch-rechub, plain and with knowledge.

The hybrid-expert adaptor of KAR (arXiv:2306.10933): text vectors to what CTR models use.
"""

import torch
from torch import Tensor, nn

from dare_job.errors import ConfigError, install_hint
from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.inputs import Inputs

try:
    from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
    from torch_rechub.basic.layers import MLP
    from torch_rechub.models.ranking import DIN, DCNv2
except ImportError as _error:
    raise ConfigError(f"the package {str(_error.name).partition('.')[0]} is missing; "
                      f"{install_hint('ctr')}") from None

EMBEDDING = 16
ADAPTED = 32  # numbers of an adapted vector
_KNOWLEDGE = "knowledge"
_ITEM_CLUSTER = "cluster_item_"
_MLP = {"dims": [128, 64], "dropout": 0.1}

class HybridExpertAdaptor(nn.Module):
    """Experts that users and items share, and experts of each, mixed by a gate.

    For the vector r of a text of side s (user or item), with shared experts S_1 .. S_m and the side's own
    experts D_1 .. D_n, each a network of one hidden layer:

        a      = softmax(W_s r + b_s)                                              (m + n)
        f_s(r) = sum_j a_j S_j(r) + sum_k a_(m + k) D_k(r)                         (out)

    If there is no text, f_s is a learned vector.

    Parameters
    ----------
    sides
        Names of the sides, each with vectors of ``size`` numbers.
    dropout
        Share of a vector's numbers that an expert does not see in training.
    """

    def __init__(self, sides: list[str], size: int, out: int = 32, hidden: int = 64, shared: int = 2,
                 dedicated: int = 2, dropout: float = 0.2):
        super().__init__()
        self.shared = nn.ModuleList(_expert(size, hidden, out, dropout) for _ in range(shared))
        self.dedicated = nn.ModuleDict({
            side: nn.ModuleList(_expert(size, hidden, out, dropout) for _ in range(dedicated))
            for side in sides})
        self.gate = nn.ModuleDict({side: nn.Linear(size, shared + dedicated) for side in sides})
        self.none = nn.ParameterDict({side: nn.Parameter(torch.zeros(out)) for side in sides})

    def forward(self, side: str, vectors: Tensor, has_text: Tensor) -> Tensor:
        """vectors (B, size), has_text (B,) bool; returns (B, out)."""
        experts = [*self.shared, *self.dedicated[side]]
        weights = self.gate[side](vectors).softmax(-1)  # (B, m + n)
        outputs = torch.stack([expert(vectors) for expert in experts], 1)  # (B, m + n, out)
        mixed = torch.einsum("be,beo->bo", weights, outputs)
        return torch.where(has_text[:, None], mixed, self.none[side])


def _expert(size: int, hidden: int, out: int, dropout: float) -> nn.Module:
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, out))


class Ctr(nn.Module):
    """A click probability from ids, attributes, the items clicked before, and texts if there are any.

    A batch is a dict of (B,) and (B, L) integer tensors: user, item, history, and for each side with texts
    ``text.user`` or ``text.item``, the row of the text's vectors or cluster ids (0: none); with texts of
    items also ``text.history`` (B, L), those of the items clicked before.

    Vectors go through the adaptor and are concatenated with the embeddings: p of the user's text, q of the
    item's, and q * mean_j q_j (elementwise) over the texts of the items clicked before, which KAR does not
    have. Cluster ids are embedded, one table per level, as features of the user, the item and the items
    clicked before. The same seed gives the same weights to all sets of texts whose vectors are of one size;
    the embeddings and, for DIN, its attention are the same for the base as well.
    """

    def __init__(self, model: str, examples: Examples, inputs: Inputs, seed: int):
        super().__init__()
        self.adaptor = None
        self._sparse, self._sides = _sparse(examples, inputs), list(inputs.sides)
        for entity in ("user", "item"):
            for name, codes in examples.of(entity).attributes.items():
                self.register_buffer(_name(entity, name), torch.from_numpy(codes), persistent=False)
        self._attributes = {entity: list(examples.of(entity).attributes) for entity in ("user", "item")}
        sizes, self._levels = {}, {}  # of the vectors, and levels of the cluster ids
        for side, data in inputs.sides.items():
            table = data.clusters if data.vectors is None else data.vectors
            (self._levels if data.vectors is None else sizes)[side] = table.shape[1]
            self.register_buffer(f"text_{side}", torch.from_numpy(table), persistent=False)
        torch.manual_seed(seed)
        out = ADAPTED * (len(sizes) + ("item" in sizes))
        self.backbone = (_din if model == "din" else _dcnv2)(self._sparse, len(examples.items.ids), out)
        if sizes:
            torch.manual_seed(seed)
            self.adaptor = HybridExpertAdaptor(list(sizes), next(iter(sizes.values())), ADAPTED)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """(B,) probabilities."""
        features = {"user": batch["user"], "item": batch["item"], "history": batch["history"]}
        for entity, names in self._attributes.items():
            for name in names:
                features[_name(entity, name)] = getattr(self, _name(entity, name))[batch[entity]]
        for side, levels in self._levels.items():
            codes = getattr(self, f"text_{side}")[batch[f"text.{side}"]]  # (B, L)
            features |= {f"cluster_{side}_{level}": codes[:, level] for level in range(levels)}
        if "item" in self._levels:
            before = self.text_item[batch["text.history"]]  # (B, L, levels)
            features |= {f"history_{level}": before[:, :, level] for level in range(self._levels["item"])}
        if self.adaptor is not None:
            adapted = [part for side in self._sides for part in self._adapted(side, batch)]
            features[_KNOWLEDGE] = torch.cat(adapted, -1)
        return self.backbone(features)

    def _adapted(self, side: str, batch: dict[str, Tensor]) -> list[Tensor]:
        """p of users; q and q * mean q_j of items. Each text of the batch goes through the adaptor once."""
        rows = batch[f"text.{side}"][:, None]  # (B, 1)
        if side == "item":
            rows = torch.cat([rows, batch["text.history"]], 1)  # (B, 1 + L)
        texts, places = torch.unique(rows, return_inverse=True)
        adapted = self.adaptor(side, getattr(self, f"text_{side}")[texts], texts > 0)[places]
        own, before = adapted[:, 0], adapted[:, 1:]
        if side != "item":
            return [own]
        has_text = (rows[:, 1:] > 0).unsqueeze(-1)  # (B, L, 1)
        return [own, own * (before * has_text).sum(1) / has_text.sum(1).clamp(min=1)]


class _WideDIN(DIN):
    """DIN whose last network also reads dense numbers: torch-rechub's embeds no dense feature for it."""

    def __init__(self, *features, extra: int, **params):
        super().__init__(*features, **params)
        self.mlp = MLP(self.all_dims + extra, activation="dice", **params["mlp_params"])

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        others = self.embedding(x, self.features).flatten(1)
        history = self.embedding(x, self.history_features)[:, 0]  # (B, L, e)
        target = self.embedding(x, self.target_features)[:, 0]  # (B, e)
        attended = self.attention_layers[0](history, target)
        return torch.sigmoid(self.mlp(torch.cat([attended, target, others, x[_KNOWLEDGE]], 1)).squeeze(1))


def _sparse(examples: Examples, inputs: Inputs) -> dict[str, int]:
    """Number of codes, 0 included, of each categorical feature except the item's id."""
    sizes = {"user": len(examples.users.ids) + 1}
    for entity in ("user", "item"):
        for name, codes in examples.of(entity).attributes.items():
            sizes[_name(entity, name)] = int(codes.max()) + 1
    for side, data in inputs.sides.items():
        if data.clusters is not None:
            sizes |= {f"cluster_{side}_{level}": int(codes.max(initial=0)) + 1
                      for level, codes in enumerate(data.clusters.T)}
    return sizes


def _features(sparse: dict[str, int], items: int, pooling: str) -> tuple[list, list, list]:
    """(of the row, of the history, of the target) as torch-rechub describes them, for one model."""
    of_items = {"item": items + 1} | {name: sparse[name] for name in sparse if name.startswith(_ITEM_CLUSTER)}
    of_row = [SparseFeature(name, size, EMBEDDING, padding_idx=0) for name, size in sparse.items()
              if name not in of_items]
    target = [SparseFeature(name, size, EMBEDDING, padding_idx=0) for name, size in of_items.items()]
    history = [SequenceFeature(name.replace(_ITEM_CLUSTER, "history_").replace("item", "history"), size,
                               EMBEDDING, pooling=pooling, shared_with=name, padding_idx=0)
               for name, size in of_items.items()]
    return of_row, history, target


def _din(sparse: dict[str, int], items: int, extra: int) -> nn.Module:
    params = {"mlp_params": _MLP, "attention_mlp_params": {"dims": [32]}}
    features = _features(sparse, items, "concat")
    return _WideDIN(*features, extra=extra, **params) if extra else DIN(*features, **params)


def _dcnv2(sparse: dict[str, int], items: int, extra: int) -> nn.Module:
    of_row, history, target = _features(sparse, items, "mean")
    dense = [DenseFeature(_KNOWLEDGE, extra)] if extra else []
    return DCNv2([*target, *of_row, *history, *dense], n_cross_layers=3, mlp_params=_MLP,
                 use_low_rank_mixture=False)


def _name(entity: str, attribute: str) -> str:
    """A name that modules may have: no dots."""
    return f"{entity}_is_{attribute.replace('.', '_')}"
