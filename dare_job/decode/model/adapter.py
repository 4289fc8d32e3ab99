"""PEFT adapters (LoRA) in the folder of a model: merged into the weights when the model is loaded."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from dare_job.decode.model import quantized
from dare_job.errors import ModelError, install_hint

_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."  # of names in files of weights


def require_peft(folder: Path) -> bool:
    """Return whether a folder holds an adapter.

    Raises
    ------
    ModelError
        It does, and peft is not installed, or its type cannot be applied to weights.
    """
    if not (folder / _CONFIG).is_file():
        return False
    try:
        from peft import PEFT_TYPE_TO_TUNER_MAPPING
    except ImportError:
        raise ModelError(f"{folder} holds an adapter ({_CONFIG}), which needs the package peft: "
                         f"{install_hint('peft')}; or remove the adapter's files from the folder") from None
    try:
        fields = json.loads((folder / _CONFIG).read_text("utf-8"))
        kind, task = fields.get("peft_type"), fields.get("task_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder / _CONFIG} cannot be read ({error}): copy the adapter again") from None
    if not hasattr(PEFT_TYPE_TO_TUNER_MAPPING.get(kind), "merge_and_unload"):
        raise ModelError(f"the adapter in {folder} is of type {kind}, which cannot be merged into a model's "
                         "weights: train a LoRA adapter instead")
    if task not in (None, "CAUSAL_LM"):
        raise ModelError(f"the adapter in {folder} is for the task {task}, not for a causal language model "
                         "(CAUSAL_LM)")
    return True


@contextmanager
def base_only(folder: Path) -> Iterator[Path]:
    """A folder with links to the files of a model without its adapter.

    transformers would apply an adapter that it finds, unmerged, without naming weights that do not fit.
    """
    with tempfile.TemporaryDirectory(prefix="dare-job-base-") as name:
        for file in folder.iterdir():
            if file.is_file() and not file.name.startswith("adapter_"):
                (Path(name) / file.name).symlink_to(file.absolute())
        yield Path(name)


def best_fit(folder: Path, outlines: Iterable[PreTrainedModel]) -> PreTrainedModel:
    """Return the model whose modules have the names in an adapter's weights; the first of several.

    A class for images and texts has its text model at another place than the class for texts alone.
    """
    names = _weight_shapes(folder)

    def matched(model: PreTrainedModel) -> int:
        """Return how many parts of the names are those of a module, from the first part on."""
        modules = {name for name, _ in model.named_modules()}
        parts = [name.removeprefix(_PREFIX).split(".") for name in names]
        return sum(max((end for end in range(len(path)) if ".".join(path[:end]) in modules), default=0)
                   for path in parts)

    return max(outlines, key=matched)


def _weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an adapter's weights by name; none if its file is missing."""
    if (file := folder / "adapter_model.safetensors").is_file():
        with safe_open(file, "pt") as weights:
            names = weights.keys()
            return {name: tuple(weights.get_slice(name).get_shape()) for name in names}
    file = folder / "adapter_model.bin"
    weights = torch.load(file, map_location="meta", weights_only=True) if file.is_file() else {}
    return {name: tuple(weight.shape) for name, weight in weights.items()}


def _require_vocabulary(model: PreTrainedModel, folder: Path) -> None:
    """Raise ModelError if an adapter has a whole embedding or output layer for more or fewer tokens."""
    layers = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    rows = {name: getattr(module, "num_embeddings", getattr(module, "out_features", None))
            for name, module in model.named_modules() if id(module) in layers}
    for name, shape in sorted(_weight_shapes(folder).items()):
        layer = name.removeprefix(_PREFIX).removesuffix(".weight").removesuffix(".base_layer")
        if shape and rows.get(layer) not in (None, shape[0]):
            raise ModelError(
                f"the adapter in {folder} is for a vocabulary of {shape[0]} tokens ({name}), and its base "
                f"model has {rows[layer]}: tokens were added for its training. Merge it into the base model "
                f"with transformers and peft (resize_token_embeddings({shape[0]}) of the base model, then "
                "PeftModel.from_pretrained and merge_and_unload), save the result and the adapter's "
                "tokenizer in a folder, and name that folder")


def apply(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return a model with an adapter merged into its weights; quantized weights keep it beside them.

    Merging into quantized weights would round them a second time.

    Raises
    ------
    ModelError
        The adapter's weights do not fit the model, are incomplete, or are damaged; or tokens were added for
        its training.
    """
    from peft import PeftConfig, PeftModel

    try:
        _require_vocabulary(model, folder)
        config = PeftConfig.from_pretrained(str(folder))
        config.inference_mode = True
        adapted = PeftModel(model, config, low_cpu_mem_usage=True)
        report = adapted.load_adapter(str(folder), "default", low_cpu_mem_usage=True,
                                      torch_device=str(model.device))
    except ModelError:
        raise
    except Exception as error:  # peft raises many kinds for adapters of other models
        raise ModelError(f"the adapter in {folder} does not fit {type(model).__name__}: "
                         f"{' '.join(str(error).split())}") from error
    for names, problem in ((report.missing_keys, "lacks weights"),
                           (report.unexpected_keys, "has weights that the model does not use")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(f"the adapter in {folder} {problem}: {sorted(names)[0]}{more}; is it an "
                             "adapter of this base model?")
    if quantized.runs_quantized(model):
        return adapted.get_base_model()
    try:
        return adapted.merge_and_unload(safe_merge=True)
    except (ValueError, AttributeError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"the adapter in {folder} cannot be merged: {error}") from error
