"""Texts to draft from, indexed in memory or in a folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dare_job.api.prompts import Text, Tokens, as_list
from dare_job.errors import ConfigError, PoolError
from dare_job.observe import progress
from pools import PoolError as FolderError
from pools.index import Index


class Pool:
    """Texts from which drafts are proposed, in an index. Make one with ``from_texts`` or ``open``."""

    def __init__(self, index: Index, tokenizer: str):
        self._index, self._tokenizer = index, tokenizer

    @classmethod
    def from_texts(cls, texts: Iterable[Text], model: str, trust_remote_code: bool = False) -> "Pool":
        """Index texts in memory.

        Parameters
        ----------
        texts
            Strings, or token ids (tokens,) with the end-of-text token. Empty texts are left out.
        model
            The model that will draft from them, named as for ``LLM``: its tokenizer is used.
        trust_remote_code
            Run Python code in the model's folder, if its tokenizer has any.

        Raises
        ------
        ConfigError
            ``texts`` is one string, or an entry is no text.
        ModelError, InfrastructureError
            The model is not found, or has no tokenizer.
        """
        texts = as_list("texts", texts)
        with progress.doing(f"indexing {progress.counted(len(texts), 'text')}"):
            tokens = Tokens.of_model(model, trust_remote_code)
            return cls(Index.build(tokens.all_ids("texts", texts)), tokens.hash)

    @classmethod
    def open(cls, folder: str | Path) -> "Pool":
        """Map a saved pool into memory: one of ``save``, or of a run (``OUT/_work/dt=D/pools/entity=E/*``).

        Raises
        ------
        PoolError
            The folder holds no pool, or a damaged one.
        """
        try:
            index = Index.open(folder)
        except FolderError as error:
            raise PoolError(str(error)) from error
        if not index.manifest.get("tokenizer"):
            raise PoolError(f"{folder}: its manifest names no tokenizer; make the pool again with "
                            "Pool.from_texts")
        return cls(index, index.manifest["tokenizer"])

    def save(self, folder: str | Path) -> None:
        """Write the pool to a folder; a pool that is there is replaced in one step."""
        self._index.save(folder, {"tokenizer": self._tokenizer})

    @property
    def texts(self) -> int:
        """Number of texts that are not empty."""
        return self._index.texts

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return self._index.token_count

    def __repr__(self) -> str:
        return f"<Pool of {progress.counted(self.texts, 'text')}, {progress.counted(self.tokens, 'token')}>"

    def _index_for(self, tokens: Tokens, model: str) -> Index:
        """The index, for a model with these tokens.

        Raises
        ------
        PoolError
            The pool was made with another tokenizer.
        """
        if self._tokenizer != tokens.hash:
            raise PoolError(f"pool: it was made with another tokenizer ({self._tokenizer[:12]}) than that of "
                            f"{model} ({tokens.hash[:12]}); make it with Pool.from_texts(texts, "
                            f"model={model!r})")
        return self._index


def indexes(pool: Pool | Sequence[Pool] | None, tokens: Tokens, model: str) -> tuple[Index, ...]:
    """The indexes of the argument ``pool``, nearest first.

    Raises
    ------
    ConfigError
        An entry is no pool.
    PoolError
        A pool was made with another tokenizer.
    """
    pools = () if pool is None else (pool,) if isinstance(pool, Pool) else tuple(pool)
    for each in pools:
        if not isinstance(each, Pool):
            raise ConfigError(f"pool is {each!r:.60}: make it with Pool.from_texts(texts, model={model!r})")
    return tuple(each._index_for(tokens, model) for each in pools)
