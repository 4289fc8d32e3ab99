"""``generate`` of transformers with a prefix callback, the peer of plain search: time, and the same lists."""

import time

import numpy as np
import torch

from dare_job.bench.recommend.methods import PLAIN, Makers, Method
from dare_job.bench.recommend.world import World


def compared(makers: Makers, k: int, users: int, batch: int) -> dict:
    """Milliseconds a user of both, of processor time, or in wall-clock time where a GPU works; how
    many users'
    items are the same.
    """
    now = time.perf_counter if makers.world.target.device.type == "cuda" else time.process_time
    world, queries = makers.world, makers.world.queries()[:users]
    search = makers.make(Method(PLAIN, k=k))
    search.search(queries)
    begun = now()
    found = [search.search(queries[at:at + batch]) for at in range(0, users, batch)]
    ours = 1e3 * (now() - begun) / users
    begun = now()
    single = [search.search([query]) for query in queries]
    alone = 1e3 * (now() - begun) / users
    following, leaf_of = _following(world)
    theirs, equal = 0.0, 0
    with world.target.as_transformers() as plain, torch.inference_mode():
        for at, query in enumerate(queries):
            begun = now()
            paths = _generate(plain, list(query.prompt), k, world.catalogue.trie.length, following)
            theirs += 1e3 * (now() - begun) / users
            equal += [leaf_of[path] for path in paths] == single[at].leaves[0].tolist()
    same = np.concatenate([one.leaves for one in found]) == np.concatenate([one.leaves for one in single])
    return {"k": k, "users": users, "generate_ms": theirs, "search_ms": ours, "batch": batch,
            "search_alone_ms": alone, "speedup": theirs / alone, "speedup_batched": theirs / ours,
            "same_items": equal, "batches_change_nothing": bool(same.all())}


def _following(world: World) -> tuple[dict, dict]:
    """Tokens behind each prefix; leaf of each whole id."""
    trie = world.catalogue.trie
    tokens = trie.paths(np.arange(trie.leaves)) + np.array(world.recommender.first_code_token)
    following: dict[tuple, set] = {}
    for path in tokens.tolist():
        for level in range(len(path)):
            following.setdefault(tuple(path[:level]), set()).add(path[level])
    ordered = {prefix: sorted(found) for prefix, found in following.items()}
    return ordered, {tuple(path): leaf for leaf, path in enumerate(tokens.tolist())}


def _generate(model, prompt: list[int], k: int, length: int, following: dict) -> list[tuple]:
    found = model.generate(
        torch.tensor([prompt], device=model.device),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=model.device), num_beams=k,
        num_return_sequences=k, max_new_tokens=length, length_penalty=0.0, do_sample=False,
        prefix_allowed_tokens_fn=lambda _, seen: following[tuple(seen[len(prompt):].tolist())])
    return [tuple(path) for path in found[:, len(prompt):].tolist()]
