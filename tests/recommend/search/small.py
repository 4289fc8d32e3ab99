"""Small models with random weights, random tries, and the results of ``generate`` for them."""

import numpy as np
import torch
from transformers import GPT2Config, LlamaConfig, Qwen2Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.trie import Trie

SIZES = (7, 9, 8, 6)
FIRST = [20, 27, 36, 44]
VOCABULARY = 60


def model(kind: str = "llama", seed: int = 0, width: int = 32, layers: int = 2, vocabulary: int = VOCABULARY):
    torch.manual_seed(seed)
    shape = {"vocab_size": vocabulary, "max_position_embeddings": 128, "eos_token_id": 1, "bos_token_id": 0,
             "pad_token_id": 2}
    if kind == "gpt2":
        config = GPT2Config(n_embd=width, n_layer=layers, n_head=4, n_positions=128, **{
            name: value for name, value in shape.items() if name != "max_position_embeddings"})
    else:
        made = {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind]
        config = made(hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
                      num_attention_heads=4, num_key_value_heads=2, **shape)
    made = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # far from uniform, like a trained model
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return made


def target(kind: str = "llama", seed: int = 0, **shape) -> Target:
    return Target(model(kind, seed, **shape), check=False)


def trie(items: int = 120, seed: int = 0, sizes=SIZES) -> Trie:
    rng = np.random.default_rng(seed)
    return Trie.from_codes(np.stack([rng.integers(0, size, items) for size in sizes], 1))


def queries(rows: int, seed: int = 0, longest: int = 12) -> list[Query]:
    rng = np.random.default_rng(seed)
    return [Query(rng.integers(3, VOCABULARY, rng.integers(1, longest + 1)).tolist())
            for _ in range(rows)]


def by_generate(used: Target, ids: Trie, query: Query, k: int, first=FIRST):
    """Return codes (k, L) and scores (k,) of transformers' beam search with a callback."""
    tokens = ids.paths(np.arange(ids.leaves)) + np.array(first)
    following: dict[tuple, set] = {}
    for path in tokens.tolist():
        for level in range(len(path)):
            following.setdefault(tuple(path[:level]), set()).add(path[level])
    prompt, length = list(query.prompt), ids.length
    with used.as_transformers() as plain, torch.inference_mode():
        found = plain.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), num_beams=k,
            num_return_sequences=k, max_new_tokens=length, length_penalty=0.0, do_sample=False,
            early_stopping=False, return_dict_in_generate=True, output_logits=True, output_scores=True,
            prefix_allowed_tokens_fn=lambda _, seen: sorted(following[tuple(seen[len(prompt):].tolist())]))
    codes = found.sequences[:, len(prompt):].numpy() - np.array(first)
    if k > 1:
        return codes, found.sequences_scores.numpy()
    chosen = found.sequences[0, len(prompt):].tolist()  # greedy search gives logits alone
    steps = zip(found.logits, chosen, strict=True)
    return codes, np.array([sum(float(step[0].log_softmax(-1)[token]) for step, token in steps)])
