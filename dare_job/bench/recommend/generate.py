"""``generate`` of transformers with a prefix callback, compared with plain search: time and items."""

import numpy as np
import torch

from dare_job.bench.measured import timed
from dare_job.bench.recommend.methods import PLAIN, Makers, Method
from dare_job.bench.recommend.world import World


def compare(makers: Makers, k: int, users: int, batch: int) -> dict:
    """Milliseconds per user of both, processor time on a CPU and wall-clock time on a GPU.

    same_items: users whose items are the same in both.
    """
    world, queries = makers.world, makers.world.queries()[:users]
    search, length = makers.make(Method(PLAIN, k=k)), world.catalogue.trie.length

    def ms(call) -> tuple[list, float]:
        result, seconds, processor = timed(call, world.target.device)
        return result, 1e3 * (seconds if world.target.device.type == "cuda" else processor) / users

    search.search(queries)
    batched, batched_ms = ms(lambda: [search.search(queries[at:at + batch]) for at in range(0, users, batch)])
    single, single_ms = ms(lambda: [search.search([query]) for query in queries])
    following, leaf_of = _following(world)
    with world.target.as_transformers() as model, torch.inference_mode():
        paths, generate_ms = ms(lambda: [_generate(model, list(query.prompt), k, length, following)
                                         for query in queries])
    equal = sum([leaf_of[path] for path in user_paths] == result.leaves[0].tolist()
                for user_paths, result in zip(paths, single, strict=True))
    same = np.array_equal(*(np.concatenate([result.leaves for result in results])
                            for results in (batched, single)))
    return {"k": k, "users": users, "generate_ms": generate_ms, "search_ms": batched_ms, "batch": batch,
            "search_alone_ms": single_ms, "speedup": generate_ms / single_ms,
            "speedup_batched": generate_ms / batched_ms, "same_items": equal, "batches_change_nothing": same}


def _following(world: World) -> tuple[dict, dict]:
    """Tokens after each prefix, and the leaf of each whole id."""
    trie = world.catalogue.trie
    tokens = trie.paths(np.arange(trie.leaves)) + np.array(world.recommender.first_code_token)
    following: dict[tuple, set] = {}
    for path in tokens.tolist():
        for level in range(len(path)):
            following.setdefault(tuple(path[:level]), set()).add(path[level])
    ordered = {prefix: sorted(allowed) for prefix, allowed in following.items()}
    return ordered, {tuple(path): leaf for leaf, path in enumerate(tokens.tolist())}


def _generate(model, prompt: list[int], k: int, length: int, following: dict) -> list[tuple]:
    ids = torch.tensor([prompt], device=model.device)
    paths = model.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=k, num_return_sequences=k, max_new_tokens=length,
        length_penalty=0.0, do_sample=False,
        prefix_allowed_tokens_fn=lambda _, tokens: following[tuple(tokens[len(prompt):].tolist())])
    return [tuple(path) for path in paths[:, len(prompt):].tolist()]
