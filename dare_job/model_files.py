"""Where a model's files are, and what they hold: names to folders, folders to fingerprints."""

import hashlib
from pathlib import Path

from dare_job.errors import ModelError

EMBEDDED = "embedded"
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "chat_template.jinja", "chat_template.json",
)
_CONFIG_FILES = ("config.json", "generation_config.json")
_WEIGHT_SUFFIXES = (".safetensors", ".bin")
_SAMPLE_BYTES = 1 << 20


def resolve(name: str, revision: str | None = None) -> Path:
    """Local folder of a model.

    name  "embedded", a folder, or a hub name ("owner/model"; ``revision`` a branch, tag or commit).
    Raises ModelError when the folder is missing or the hub cannot be reached and has no copy here.
    """
    if name == EMBEDDED:
        from dare_job.model import embedded_path

        return Path(embedded_path())
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"model folder {name} does not exist")
    return _download(name, revision)


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except LocalEntryNotFoundError:
        raise ModelError(
            f"model {name} is no local folder, is not in the hub cache, and the hub cannot be reached; give "
            "a folder, 'embedded', or run where the hub can be reached"
        ) from None
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise ModelError(f"model {name} is no local folder and cannot be downloaded: {error}") from error


def fingerprint(path: str | Path) -> str:
    """sha256 (hex) of what can change a model's text.

    Configuration, generation configuration and tokenizer files count by content. Weight files count by name,
    size, first and last MiB (which holds the header of a safetensors file, with every tensor's name, type and
    place): reading all of a large model would take minutes on every run.
    """
    path, digest = Path(path), hashlib.sha256()
    _require(path)
    for file in sorted(path.iterdir()):
        if file.name in _CONFIG_FILES or file.name in _TOKENIZER_FILES:
            _add(digest, file.name, file.read_bytes())
        elif file.suffix in _WEIGHT_SUFFIXES:
            _add(digest, file.name, _sample(file))
    return digest.hexdigest()


def tokenizer_hash(path: str | Path) -> str:
    """sha256 (hex) of the tokenizer's files: equal hashes mean equal token ids."""
    path, digest = Path(path), hashlib.sha256()
    _require(path)
    found = [path / name for name in sorted(_TOKENIZER_FILES) if (path / name).is_file()]
    if not found:
        raise ModelError(f"{path} holds no tokenizer")
    for file in found:
        _add(digest, file.name, file.read_bytes())
    return digest.hexdigest()


def _require(path: Path) -> None:
    if not (path / "config.json").is_file():
        missing = "does not exist" if not path.is_dir() else "holds no config.json"
        raise ModelError(f"model folder {path} {missing}")


def _sample(file: Path) -> bytes:
    size = file.stat().st_size
    with file.open("rb") as stream:
        first = stream.read(_SAMPLE_BYTES)
        stream.seek(max(size - _SAMPLE_BYTES, 0))
        return size.to_bytes(8, "little") + first + stream.read(_SAMPLE_BYTES)


def _add(digest, name: str, content: bytes) -> None:
    for part in (name.encode(), content):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
