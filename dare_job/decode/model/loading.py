"""Loading a model from a folder or the hub, with checks that give one-line errors."""

import json
import pickle
import re
from contextlib import nullcontext, suppress
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.utils import cached_file

from dare_job.decode.model import adapter, quantized
from dare_job.errors import ConfigError, ModelError

# Weights without effect that transformers does not list: scales of a quantized key-value cache, and buffers
# that old releases saved although the configuration determines them.
_HARMLESS = re.compile(r"\.[kv]_scale$|\.(rotary_emb|rope)\.(inv_freq|freqs)$|\.masked_bias$")
_CPU = torch.device("cpu")
_MAX_NAMES = 3  # weights named in a message; the others are counted
_ERRORS = (OSError, ValueError, KeyError, ImportError, RuntimeError, EOFError, TypeError, AttributeError,
           pickle.UnpicklingError, SafetensorError, StrictDataclassError)


def load(path: str | Path, dtype: str, trust_remote_code: bool,
         place: torch.device = _CPU) -> PreTrainedModel:
    """Load a causal language model onto a device, without a copy on the CPU.

    Every weight must be in its files, and every weight of its files in the model. An adapter in the folder is
    applied.

    Parameters
    ----------
    path : str or Path
        Local folder or hub name.
    dtype : {"float32", "bfloat16", "float16"}
    trust_remote_code : bool
    place : torch.device

    Raises
    ------
    ModelError
        The folder, a file, a weight or a package is missing or damaged, a weight is not used, or it is no
        causal language model.
    """
    options = {"trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(path, **options)
        _check_generation_config(path)
        quantized.require(config, place, str(path))
        adapted = adapter.require_peft(Path(path))
        with adapter.base_only(Path(path)) if adapted else nullcontext(path) as source:
            kind = _adapted_class(config, Path(path), options) if adapted else _auto_class(config)
            model, report = kind.from_pretrained(
                source, dtype=getattr(torch, dtype), output_loading_info=True, ignore_mismatched_sizes=True,
                device_map={"": place}, **options)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except _ERRORS as error:
        raise ModelError(_reason(path, error)) from error
    model.name_or_path = str(path)
    if quantized.method(config) and not quantized.runs_quantized(model):
        model.to(getattr(torch, dtype))  # weights that were not quantized keep the type of their file
    _check_weights(path, report, model, config)
    return adapter.apply(model, Path(path)) if adapted else model


def outline(path: str | Path, trust_remote_code: bool) -> PreTrainedModel:
    """Return a model of a configuration, without weights, with the generation config of its folder.

    Raises
    ------
    ModelError
        The configuration is missing or damaged, or not that of a causal language model.
    """
    options = {"trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(path, **options)
        _check_generation_config(path)
        with torch.device("meta"):
            model = _auto_class(config).from_config(config, **options)
        with suppress(OSError):  # there is none: the configuration has the tokens
            model.generation_config = GenerationConfig.from_pretrained(path)
    except _ERRORS as error:
        raise ModelError(_reason(path, error)) from error
    model.name_or_path = str(path)
    return model


def _auto_class(config: PreTrainedConfig) -> type:
    """Return the class that loads such a model: one of its own for image models that also continue texts."""
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    of_images = type(config) in AutoModelForImageTextToText._model_mapping
    if of_images and not remote and type(config) not in AutoModelForCausalLM._model_mapping:
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def _adapted_class(config: PreTrainedConfig, folder: Path, options: dict) -> type:
    """Return the class on which the adapter in a folder was trained."""
    kind = _auto_class(config)
    if kind is not AutoModelForCausalLM or type(config) not in AutoModelForImageTextToText._model_mapping:
        return kind
    outlines = {}
    for each in (kind, AutoModelForImageTextToText):
        with suppress(*_ERRORS), torch.device("meta"):  # it may lack what only images need (Emu3)
            outlines[each.from_config(config, **options)] = each
    return outlines[adapter.best_fit(folder, outlines)] if outlines else kind


def device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda".

    Raises
    ------
    ConfigError
        There is no such device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("model.device is 'cuda' but torch finds no GPU; use 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _check_generation_config(path) -> None:
    """Raise ModelError for an unreadable file, for which transformers would use defaults."""
    file = cached_file(path, "generation_config.json", _raise_exceptions_for_gated_repo=False,
                       _raise_exceptions_for_missing_entries=False,
                       _raise_exceptions_for_connection_errors=False)
    if file is None:
        return
    try:
        fields = json.loads(Path(file).read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is not JSON ({error}); correct or remove it") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{file} is not a JSON object; correct or remove it")


def _check_weights(path, report: dict, model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Raise ModelError for weights that are missing, misshapen or not used.

    transformers would initialize the first two kinds randomly, and leave out the last with a log message. It
    lists weights that a class may leave out; they are not in the report. Nor need a model that continues
    texts use those that read images or sounds (Llama 4).
    """
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{path} lacks weights of a causal language model: {_summary(missing)}")
    if wrong := sorted(f"{name} is {tuple(actual)}, not {tuple(expected)}"
                       for name, actual, expected in report["mismatched_keys"]):
        raise ModelError(f"{path} has weights whose shapes differ from its config.json: {_summary(wrong)}")
    unused = sorted(key for key in report["unexpected_keys"] if not _HARMLESS.search(key))
    images = _beside_text(unused, model, config)
    if unused := [key for key in unused if key not in images]:
        raise ModelError(f"{path} has weights that {type(model).__name__} does not use: {_summary(unused)}. "
                         "The texts would be those of another model: use the config.json that belongs to the "
                         "weights, merge an adapter first (merge_and_unload of peft), or remove these "
                         "weights")


def _beside_text(names: list[str], model: PreTrainedModel, config: PreTrainedConfig) -> set[str]:
    """Return the names of weights of modules that the class for images and texts has beside the text model.

    Checkpoints can have other names than the modules (dots3.note).
    """
    if not names or type(config) not in AutoModelForImageTextToText._model_mapping:
        return set()
    with suppress(*_ERRORS), torch.device("meta"):  # the configuration may lack what only images need (Emu3)
        whole = AutoModelForImageTextToText.from_config(config)
        conversions = get_model_conversion_mapping(whole)
        renamings, converters = ([change for change in conversions if isinstance(change, kind)]
                                 for kind in (WeightRenaming, WeightConverter))
        parts = _parts_beside_text(whole, model)
        modules = {name: rename_source_key(name, renamings, converters)[0] for name in names}
        return {name for name in names
                if not parts.isdisjoint([*name.split(".")[:2], *modules[name].split(".")[:2]])}
    return set()


def _parts_beside_text(whole: PreTrainedModel, model: PreTrainedModel) -> set[str]:
    """Return names of modules, not deep in the whole model, that the model for texts has not."""
    own = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    own_models = {type(module) for module in model.modules() if isinstance(module, PreTrainedModel)}
    parts = {name.rpartition(".")[2] for name, module in whole.named_modules()
             if name.count(".") < 2 and type(module) not in own_models}
    return parts - own


def _summary(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _reason(path, error: Exception) -> str:
    folder = Path(path)
    text = " ".join(str(error).split())
    if isinstance(path, Path) or folder.is_absolute():
        if not folder.exists():
            return f"model folder {path} does not exist"
        if not (folder / "config.json").exists():
            return f"{path} is not a model folder: it has no config.json"
        if isinstance(error, SafetensorError):
            return f"weight file {_damaged(folder)} is damaged: {text}"
        if isinstance(error, OSError) and ("safetensors" in text or "pytorch_model" in text):
            return f"{path} lacks weights: {text}"
    if "Unrecognized configuration class" in text:
        return (f"{path} is not a causal language model that transformers can load: use a model that is "
                "trained to continue texts")
    return f"cannot load model {path}: {text}"


def _damaged(folder: Path) -> Path:
    """Return the first weight file that does not open; the folder if all do."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except SafetensorError:
            return file
    return folder
