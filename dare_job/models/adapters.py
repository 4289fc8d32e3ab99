"""PEFT adapters (LoRA): joined with their base model into one folder, in the user's cache.

The folder holds links: to the files of the base model, to the adapter's configuration and weights, and to the
adapter's tokenizer if it has one. It is fingerprinted and shipped like every model folder. The loader applies
the adapter (``dare_job/decode/model/adapter.py``).
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from dare_job.errors import ModelError
from dare_job.storage.local_copy import make_once, user_cache

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
                 "sentencepiece.bpe.model")
_NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")  # what trainers leave beside weights


def has_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, with or without its base model."""
    return (folder / CONFIG).is_file()


def is_base_weights(file: Path) -> bool:
    """Whether a file holds weights of a model itself."""
    return file.suffix in (".safetensors", ".bin") and file.name not in (*WEIGHTS, *_NO_WEIGHTS)


def needs_base(folder: Path) -> bool:
    """Whether a folder holds an adapter without the weights of its base model."""
    return (has_adapter(folder) and not (folder / "modules.json").is_file()
            and not any(map(is_base_weights, folder.iterdir())))


def base_name(folder: Path, setting: str) -> str:
    """Name of an adapter's base model: a folder, or a hub name with its revision.

    Raises
    ------
    ModelError
        The adapter's configuration cannot be read or names no base model, or the adapter has no weights.
    """
    file = folder / CONFIG
    try:
        fields = json.loads(file.read_text("utf-8"))
        name, revision = fields.get("base_model_name_or_path"), fields.get("revision")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{file} cannot be read ({error}): copy the adapter again") from None
    if not any((folder / weights).is_file() for weights in WEIGHTS):
        raise ModelError(f"adapter folder {folder} holds no weights ({WEIGHTS[0]}): copy the adapter again")
    if not name or not isinstance(name, str):
        raise ModelError(f"{setting} = {folder}: its {CONFIG} names no base model: set "
                         "base_model_name_or_path to a folder or a hub name")
    is_hub_name = revision and not Path(name).expanduser().exists() and "@" not in name and "://" not in name
    return f"{name}@{revision}" if is_hub_name else name


def join(adapter: Path, base: Path, base_files: Iterable[Path], tokenizer_files: Iterable[str]) -> Path:
    """A folder with links to an adapter and its base model; one folder for each set of files.

    Parameters
    ----------
    base_files
        The files of the base model.
    tokenizer_files
        Names of files that belong to a tokenizer. Those of the adapter replace all those of the base model if
        a vocabulary is among them.

    Raises
    ------
    ModelError
        The base model is an adapter itself.
    """
    if has_adapter(base):
        raise ModelError(f"the base model {base} of the adapter {adapter} is an adapter itself: merge it "
                         "into its own base model first (merge_and_unload of peft), and name the result in "
                         f"base_model_name_or_path of {adapter / CONFIG}")
    names = set(tokenizer_files)
    whole = any((adapter / name).is_file() for name in _VOCABULARIES)
    own = names if whole else {name for name in names if name.startswith("chat_template")}
    links = {file.name: file for file in base_files if not (whole and file.name in names)}
    links |= {name: adapter / name for name in own if (adapter / name).is_file()}
    links |= {name: adapter / name for name in (CONFIG, *WEIGHTS) if (adapter / name).is_file()}
    targets = {name: str(file.absolute()) for name, file in sorted(links.items())}
    version = hashlib.sha256(json.dumps(targets).encode()).hexdigest()[:16]
    folder = user_cache("adapters") / f"{adapter.absolute().name}-{version}"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def fill(partial: Path) -> None:
        for name, target in targets.items():
            (partial / name).symlink_to(target)

    make_once(folder, fill)
    return folder
