"""Model folders: resolve a name to a folder, and compute a folder's fingerprint.

SHA-256 digests of large files are cached, so that a model of many gigabytes is read once. A cached digest is
valid while the file's path, size, modification time, change time and inode stay the same. The cache is in
memory and in ``file-digests.json`` of the user's cache folder ($XDG_CACHE_HOME/dare-job, or
~/.cache/dare-job); if that folder cannot be used, in memory only.
"""

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from dare_job.errors import InfrastructureError, ModelError
from dare_job.models import adapters
from dare_job.storage import errors
from dare_job.storage.local_copy import local_copy, user_cache
from dare_job.storage.paths import AnyPath, atomic_writer, digest_of, is_local
from dare_job.storage.paths import path as path_of

EMBEDDED = "embedded"
_LARGE = 1 << 20  # bytes; reading smaller files is faster than the cache
_SETTLED_S = 2.0  # a file that just changed may change again within the resolution of its time stamp
_remembered: dict[str, list] = {}  # resolved path: [size, mtime_ns, ctime_ns, inode, digest]

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "chat_template.jinja", "chat_template.json",
)
_WEIGHTS = (".safetensors", ".bin")
_COUNTED = (".safetensors", ".bin", ".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
_UNWANTED = ["consolidated*", "*/*"]  # duplicates of the weights in another layout, and exports
_CONFIGS = ("config.json", "modules.json")  # of a model; of an encoder
_REVISION = re.compile(r"([\w.-]+(?:/[\w.-]+)?)@([\w./-]+)")


def sha256(file: Path) -> str:
    """SHA-256 (hex) of a file's content; links are followed.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    file = Path(os.path.realpath(file, strict=True))
    key = _key(file)
    known = _cached() if key[0] >= _LARGE else {}
    if known.get(str(file), [])[:-1] == key:
        return known[str(file)][-1]
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    settled = time.time() - max(key[1], key[2]) / 1e9 > _SETTLED_S
    if key[0] >= _LARGE and settled and _key(file) == key:
        _remembered[str(file)] = [*key, digest]
        _write(known | _remembered)
    return digest


def _key(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _cache_file() -> Path:
    """Raises RuntimeError if the user has no home folder."""
    return user_cache("file-digests.json")


def _cached() -> dict[str, list]:
    """The digests of the file on disk and those in memory."""
    try:
        entries = json.loads(_cache_file().read_text(encoding="utf-8")).items()
        stored = {path: entry for path, entry in entries if isinstance(entry, list)}
    except (OSError, ValueError, RuntimeError, RecursionError, AttributeError):
        stored = {}
    return stored | _remembered


def _write(digests: dict[str, list]) -> None:
    """Write the digests of existing files to the file on disk. A failure only costs time."""
    content = json.dumps({path: entry for path, entry in digests.items() if os.path.exists(path)})
    with suppress(OSError, RuntimeError, ValueError):
        target = _cache_file()
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(target, f".{target.name}.partial") as stream:
            stream.write(content.encode())


def split_revision(name: str) -> tuple[str, str | None]:
    """A hub name and the branch, tag or commit after its ``@``, if any; other names as they are."""
    match = None if Path(name).expanduser().exists() else _REVISION.fullmatch(name)
    return (match[1], match[2]) if match else (name, None)


def resolve(name: str, trust_remote_code: bool = False, setting: str = "model.name",
            unwanted: Sequence[str] = _UNWANTED,
            parts: Callable[[Path], list[Path]] = lambda folder: [folder]) -> Path:
    """Local folder of a model, which a setting names.

    Parameters
    ----------
    name
        "embedded", a folder, the URL of one, a GGUF file, or a hub name ("owner/model", "owner/model@v2"). A
        folder, URL or hub name may also be that of a PEFT adapter, which names its base model.
    trust_remote_code
        Download a hub model's Python code too.
    unwanted
        Patterns of files of a hub model that are not downloaded.
    parts
        The folders in a downloaded one that may hold weights.

    Raises
    ------
    ConfigError
        A URL is invalid, as in ``paths.path``, or its bucket does not exist.
    ModelError
        The folder is missing or holds no model, there is none at the URL, a GGUF file cannot be read, the
        model cannot be downloaded from the hub, or the base model of an adapter cannot be found.
    InfrastructureError
        The hub cannot be reached and there is no local copy, or the model cannot be copied from a URL.
    """
    folder = _located(name, trust_remote_code, setting, unwanted, parts)
    if not adapters.needs_base(folder):
        _require_no_gguf(folder, name, setting)
        return folder
    base_name = adapters.base_name(folder, setting)
    try:
        base = _located(base_name, trust_remote_code, setting, unwanted, parts)
    except (ModelError, InfrastructureError) as error:
        raise type(error)(f"{setting} = {name} is an adapter of {base_name}: {error}; set "
                          f"base_model_name_or_path in its {adapters.CONFIG} to where the base model is, or "
                          "copy the adapter's files into the folder of the base model") from error
    return adapters.join(folder, base, files(base), _TOKENIZER_FILES)


def _located(name: str, trust_remote_code: bool, setting: str, unwanted: Sequence[str],
             parts: Callable[[Path], list[Path]]) -> Path:
    """The folder of ``resolve``; that of an adapter is without its base model."""
    if name == EMBEDDED:
        from dare_job.models import embedded_path

        return Path(embedded_path())
    if "://" in name:
        return _copied(path_of(name, setting), setting)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.suffix == ".gguf" and folder.is_file():
        from dare_job.models import gguf

        return gguf.model_folder(folder, sha256(folder))
    hub_name, revision = split_revision(name)
    if folder.is_absolute() or name.startswith((".", "~")) or hub_name.count("/") > 1:
        raise ModelError(f"model folder {name} does not exist")
    return _download(hub_name, revision, trust_remote_code, unwanted, parts)


def _require_no_gguf(folder: Path, name: str, setting: str) -> None:
    """Raise ModelError for a folder that holds a model only in GGUF files, or no model of the hub."""
    if any((folder / config).is_file() for config in _CONFIGS):
        return
    if gguf_files := sorted(folder.glob("*.gguf")):
        raise ModelError(f"{setting} = {name} holds {len(gguf_files)} GGUF "
                         f"file{'s' * (len(gguf_files) > 1)} and no config.json: name the file itself: "
                         f"{setting} = {gguf_files[0]}")
    if not Path(name).expanduser().is_dir() and "://" not in name:
        raise ModelError(f"{setting} = {name} has no config.json on the hub, so it is no model of "
                         "transformers. If it has GGUF files, download one of them (hf download NAME FILE) "
                         f"and name that file: {setting} = FILE")


def _copied(folder: AnyPath, setting: str) -> Path:
    """A local folder itself, or a local copy of a remote one, which is renewed when its files change."""
    errors.check_access(folder, setting)
    if not any((folder / name).is_file() for name in (*_CONFIGS, adapters.CONFIG)):
        raise ModelError(f"{setting} = {folder}: no model there (config.json is missing)")
    return local_copy(folder, "" if is_local(folder) else digest_of(folder), kept=True)


def _download(name: str, revision: str | None, trust_remote_code: bool, unwanted: Sequence[str],
              parts: Callable[[Path], list[Path]]) -> Path:
    """Download a model; pickled weights (``.bin``) only if there are no others."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = [*_WANTED, *(["*.py"] if trust_remote_code else [])]
    try:
        folder = _snapshot(name, revision, wanted, unwanted)
        bare = [part for part in parts(folder) if not any(part.glob("*.safetensors"))]
        if bare:
            pickles = [(part.relative_to(folder) / name).as_posix() for part in bare
                       for name in ("pytorch_model*.bin", adapters.WEIGHTS[1])]
            folder = _snapshot(name, revision, [*wanted, *pickles], unwanted)
        return folder
    except LocalEntryNotFoundError:
        raise InfrastructureError(f"model {name} is no local folder, is not in the hub cache, and the hub "
                                  "cannot be reached; use a folder or 'embedded', or run where the hub can "
                                  "be reached") from None
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise ModelError(f"model {name} is no local folder and cannot be downloaded: {error}") from error


def _snapshot(name: str, revision: str | None, wanted: list[str], unwanted: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, allow_patterns=wanted,
                                  ignore_patterns=list(unwanted)))


def vocabulary(path: str | Path, trust_remote_code: bool = False) -> int:
    """Vocabulary size in a model's configuration.

    transformers, which is slow to import, is used only for nested configurations and other names.

    Raises
    ------
    ModelError
        The configuration cannot be read or has no vocabulary size.
    """
    try:
        fields = json.loads((Path(path) / "config.json").read_text("utf-8"))
        if not any(isinstance(value, dict) and "vocab_size" in value for value in fields.values()):
            return int(fields["vocab_size"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        pass  # transformers knows more names, and says what is wrong
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        return int(config.get_text_config(decoder=True).vocab_size)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"{path}: its configuration names no vocab_size ({error})") from error


def files(path: str | Path, weights: bool = True) -> list[Path]:
    """The files that a model and its tokenizer are loaded from, in ascending order.

    Pickled weights are left out if there are others, as in the loader.

    Parameters
    ----------
    weights
        Include the weights.
    """
    paths = [file for file in sorted(Path(path).iterdir()) if _counts(file)]
    if not weights:
        return [file for file in paths if file.suffix not in _WEIGHTS]
    return [file for file in paths if not _is_superseded(file, paths)]


def _is_superseded(file: Path, paths: list[Path]) -> bool:
    """Whether pickled weights, of the model or of an adapter, are there as safetensors too."""
    if file.name in adapters.WEIGHTS:
        return file.suffix == ".bin" and file.with_suffix(".safetensors") in paths
    safe = any(path.suffix == ".safetensors" for path in paths if adapters.is_base_weights(path))
    return file.suffix == ".bin" and safe


def _counts(file: Path) -> bool:
    return file.suffix in _COUNTED and not file.is_dir()


def fingerprint(path: str | Path) -> str:
    """SHA-256 (hex) of everything that can change a model's text: names and contents of the folder's files.

    Included are weights, configuration, tokenizer, chat template, adapter and the model's own Python code, by
    suffix; notes and subfolders are not. Code that the configuration takes from another repository counts by
    name.

    Raises
    ------
    ModelError
        The folder holds no model, or a file is missing or cannot be read.
    """
    path = Path(path)
    _require(path)
    _require_weights(path)
    return digest_of_files(path, filter(_counts, sorted(path.iterdir())))


@lru_cache(maxsize=4)
def require_same_files(folder: str, expected: str, fingerprint: Callable[[Path], str] = fingerprint) -> None:
    """Check on an executor that a model's files are those of the driver; each folder is checked once.

    Other files would mix texts of two models in one table.

    Parameters
    ----------
    expected
        The driver's fingerprint; empty: nothing is checked.
    fingerprint
        Of the kind of model that the folder holds.

    Raises
    ------
    ModelError
        The host has no complete model there, or another one.
    """
    if not expected:
        return
    host, advice = socket.gethostname(), "copy the driver's folder to this host, or set spark.ship=auto"
    try:
        actual = fingerprint(Path(folder))
    except ModelError as error:
        raise ModelError(f"{host}: {error}; {advice}") from error
    if actual != expected:
        raise ModelError(f"{host}: the model in {folder} differs from the driver's (SHA-256 {actual[:12]} "
                         f"instead of {expected[:12]}): {advice}")


def digest_of_files(folder: Path, paths: Iterable[Path]) -> str:
    """SHA-256 (hex) of the names and contents of files in a folder, in the given order.

    Raises
    ------
    ModelError
        A file cannot be read.
    """
    digest = hashlib.sha256()
    for file in paths:
        _add(digest, file.relative_to(folder).as_posix(), _content_digest(file))
    return digest.hexdigest()


def tokenizer_hash(path: str | Path) -> str:
    """SHA-256 (hex) of the tokenizer's files; equal hashes mean equal token ids.

    Raises
    ------
    ModelError
        The folder holds no model, or no tokenizer.
    """
    path, digest = Path(path), hashlib.sha256()
    _require(path)
    paths = [path / name for name in sorted(_TOKENIZER_FILES) if (path / name).is_file()]
    if not paths:
        raise ModelError(f"{path} holds no tokenizer")
    for file in paths:
        _add(digest, file.name, file.read_bytes())
    return digest.hexdigest()


def _require(path: Path) -> None:
    if not path.is_dir():
        raise ModelError(f"model folder {path} does not exist")
    if not (path / "config.json").is_file():
        hint = (": it is an adapter, and its base model is missing" if adapters.has_adapter(path) else
                ": name one of its GGUF files instead" if any(path.glob("*.gguf")) else "")
        raise ModelError(f"model folder {path} holds no config.json{hint}")


def _require_weights(path: Path) -> None:
    """Check that there are weights, and all files that the index of sharded weights names."""
    index = path / "model.safetensors.index.json"
    weights = [file for file in path.iterdir() if adapters.is_base_weights(file)]
    if not index.is_file() and not any(file.suffix == ".safetensors" for file in weights):
        index = path / "pytorch_model.bin.index.json"
    if not index.is_file() and not weights:
        raise ModelError(f"model folder {path} holds no weights (*.safetensors): copy the model again")
    if not index.is_file() or (path / "model.safetensors").is_file():
        return
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} cannot be read ({error!r}): copy the model again") from None
    if missing := sorted(name for name in named if not (path / name).is_file()):
        raise ModelError(f"model folder {path} lacks {missing[0]}, one of {len(missing)} missing files of "
                         f"the {len(named)} that {index.name} names: copy the model again")


def _content_digest(file: Path) -> bytes:
    try:
        return bytes.fromhex(sha256(file))
    except OSError as error:
        raise ModelError(f"model file {file} cannot be read: {error}") from error


def _add(digest, name: str, content: bytes) -> None:
    for part in (name.encode(), content):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
