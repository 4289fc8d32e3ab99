"""``dare-job pools export``: the pools of a folder, for other inference engines."""

from pathlib import Path

from dare_job.api.prompts import Tokens
from dare_job.errors import ConfigError, PoolError
from dare_job.observe import progress
from pools import PoolError as FolderError
from pools import export as forms
from pools import manifest, store
from pools.index import Index


def export(folder: Path, form: str, save: Path, model: str | None = None,
           trust_remote_code: bool = False) -> dict:
    """Write each pool of a folder as JSON lines (``pools.export``).

    Parameters
    ----------
    folder
        Folder of a pool, or of several.
    save
        Folder to write to: ``NAME.jsonl`` for each pool.
    model
        Model whose tokenizer made the pools; only for ``sglang``.

    Returns
    -------
    dict
        ``format``, and ``pools``: file, texts and tokens of each pool, by its name.

    Raises
    ------
    ConfigError
        The model is missing.
    PoolError
        The folder holds no pool, a pool is damaged, or another tokenizer made it.
    ModelError, InfrastructureError
        The model is not found.
    """
    is_pool = (folder / manifest.NAME).is_file()
    found = {folder.name: folder} if is_pool else {name: folder / name for name in store.names(folder)}
    if not found:
        raise PoolError(f"{folder} holds no pool: name the folder of one, or of several, such as "
                        "OUT/_work/dt=D/pools/entity=user")
    tokens = None
    if form == forms.SGLANG:
        if model is None:
            raise ConfigError("--format sglang writes texts, and a pool holds token ids: name the model "
                              "whose tokenizer made it with --model")
        tokens = Tokens.of_model(model, trust_remote_code)
    with progress.counting("exporting pools", len(found), unit="pools") as counter:
        written = {}
        for name, pool in found.items():
            written[name] = _write(pool, form, save / f"{name}.jsonl", tokens)
            counter.advance()
    return {"format": form, "pools": written}


def _write(pool: Path, form: str, file: Path, tokens: Tokens | None) -> dict:
    try:
        index = Index.open(pool, tokens and tokens.hash)
        forms.write(index, file, form, tokens and tokens.text)
    except FolderError as error:
        raise PoolError(str(error)) from error
    return {"file": str(file), "texts": index.texts, "tokens": index.token_count}
