"""Quantized checkpoints, recognized by their configuration, before weights are loaded."""

import importlib.util
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AutoHfQuantizer

from dare_job.errors import ModelError

_DEQUANTIZED = "it is dequantized at loading and needs the memory of unquantized weights"


@dataclass(frozen=True)
class Method:
    """What a quantization method needs.

    Attributes
    ----------
    label : str
    packages : tuple of str
        Modules that must be installed.
    on_cpu : str
        What happens on a CPU; empty: it cannot run there.
    """

    label: str
    packages: tuple[str, ...] = ()
    on_cpu: str = ""


# As in the quantizers of transformers 5.17 to 5.23. Other methods that transformers knows are left to its own
# messages.
METHODS = {
    "awq": Method("AWQ", ("gptqmodel",), "it runs by the kernels of gptqmodel"),
    "gptq": Method("GPTQ", ("gptqmodel", "optimum"), "it runs by the kernels of gptqmodel"),
    "bitsandbytes": Method("bitsandbytes", ("bitsandbytes",), "it runs by the kernels of bitsandbytes"),
    "fp8": Method("FP8", (), _DEQUANTIZED),
    "fbgemm_fp8": Method("FP8 of FBGEMM", ("fbgemm_gpu",)),
    "compressed-tensors": Method("compressed-tensors", ("compressed_tensors",),
                                 "it is dequantized at the first forward pass, and needs the memory of "
                                 "unquantized weights"),
    "torchao": Method("torchao", ("torchao",), "it runs by the kernels of torchao"),
    "mxfp4": Method("MXFP4", (), _DEQUANTIZED),
}


def settings(config: PreTrainedConfig) -> dict | None:
    """The quantization settings of a configuration; None if its weights are not quantized."""
    quantization = (getattr(config, "quantization_config", None)
                    or getattr(config.get_text_config(decoder=True), "quantization_config", None))
    return quantization if quantization is None or isinstance(quantization, dict) else quantization.to_dict()


def method(config: PreTrainedConfig) -> Method | None:
    """The quantization method of a configuration; None if its weights are not quantized."""
    quantization = settings(config)
    if quantization is None:
        return None
    name = "bitsandbytes" if quantization.get("load_in_8bit") or quantization.get("load_in_4bit") else str(
        quantization.get("quant_method"))
    return METHODS.get(name) or Method(name, on_cpu="unknown")


def require(config: PreTrainedConfig, place: torch.device, path: str) -> None:
    """Check that quantized weights can be loaded and run on a device.

    Raises
    ------
    ModelError
        A package is missing, or the device cannot run the method.
    """
    used = method(config)
    if used is None:
        return
    if missing := [name for name in used.packages if importlib.util.find_spec(name) is None]:
        packages = " ".join(name.replace("_", "-") for name in missing)
        raise ModelError(f"{path} is quantized ({used.label}), which needs {packages}: pip install "
                         f"{packages} on the driver and the executors, or use a model that is not quantized")
    if place.type == "cpu" and not used.on_cpu:
        raise ModelError(f"{path} is quantized ({used.label}), which no CPU can run: use a GPU "
                         "(model.device = cuda), or a model that is not quantized")
    try:
        quantizer = AutoHfQuantizer.from_config(settings(config), pre_quantized=True)
        quantizer.validate_environment(device_map={"": place}, weights_only=True)
    except (ImportError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is quantized ({used.label}) and cannot be loaded on {place}: "
                         f"{' '.join(str(error).split())}") from error


def runs_quantized(model: PreTrainedModel) -> bool:
    """Return whether a loaded model computes with quantized weights, rather than dequantized ones."""
    return bool(getattr(model, "is_quantized", False))


def describe(config: PreTrainedConfig, place: torch.device) -> str | None:
    """One line about quantized weights on a device; None if they are not quantized."""
    used = method(config)
    if used is None:
        return None
    return f"quantized ({used.label})" + (f"; on a CPU {used.on_cpu}" if place.type == "cpu" else "")
