"""Prompts that the embedded model knows, and what transformers writes for them."""

from functools import cache

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job.models import embedded_path

TITLES = ("Silent Harbor", "Golden Robot in Kyoto", "Broken Mirror", "Velvet Throne", "Wild Saint in Oslo",
          "Old Station", "Quiet Duel", "Steel Siege")


def film(title: str) -> str:
    return ("Describe this film by mood, theme and audience.\n"
            f"Title: {title}\ncountry: Italy\ndecade: 1980s\ngenre: drama\nDescription:\n")


FILMS = tuple(map(film, TITLES))


@cache
def model_and_tokenizer():
    folder = embedded_path()
    return (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(),
            AutoTokenizer.from_pretrained(folder))


@cache
def greedy(prompt: str, max_new_tokens: int = 128) -> tuple[int, ...]:
    """Token ids that ``generate`` of transformers writes after a prompt."""
    model, tokenizer = model_and_tokenizer()
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
    return tuple(ids[0, inputs["input_ids"].shape[1]:].tolist())
