"""A draft model's folder: the embedded model, whose weights some noise has been added to."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job.models import embedded_path


def write(folder: Path, noise: float = 0.3) -> Path:
    """noise: of a matrix's entries, in standard deviations of these."""
    path, numbers = embedded_path(), torch.Generator().manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=numbers))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    return folder
