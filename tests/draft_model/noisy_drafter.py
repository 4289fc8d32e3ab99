"""Writes a draft model: the embedded model with noise added to its weights."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job.models import embedded_path


def write(folder: Path, noise: float = 0.3) -> Path:
    """Write the model; ``noise`` is in standard deviations of each matrix's entries."""
    path, generator = embedded_path(), torch.Generator().manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    return folder
