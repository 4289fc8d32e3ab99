"""``generate`` of transformers with a prefix callback, the peer of plain search: time, and the same lists."""

import numpy as np
import torch

from dare_job.bench.measured import timed
from dare_job.bench.recommend.methods import PLAIN, Makers, Method
from dare_job.bench.recommend.world import World


def compared(makers: Makers, k: int, users: int, batch: int) -> dict:
    """Milliseconds a user of both, of processor time, or in wall-clock time where a GPU works; how many
    users' items are the same.
    """
    world, queries = makers.world, makers.world.queries()[:users]
    search, length = makers.make(Method(PLAIN, k=k)), world.catalogue.trie.length

    def ms(call) -> tuple[list, float]:
        found, took = timed(call)
        return found, 1e3 * took["seconds" if world.target.device.type == "cuda" else "processor"][0] / users

    search.search(queries)
    found, ours = ms(lambda: [search.search(queries[at:at + batch]) for at in range(0, users, batch)])
    single, alone = ms(lambda: [search.search([query]) for query in queries])
    following, leaf_of = _following(world)
    with world.target.as_transformers() as plain, torch.inference_mode():
        paths, theirs = ms(lambda: [_generate(plain, list(query.prompt), k, length, following)
                                    for query in queries])
    equal = sum([leaf_of[path] for path in lists] == one.leaves[0].tolist()
                for lists, one in zip(paths, single, strict=True))
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
    ids = torch.tensor([prompt], device=model.device)
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=k, num_return_sequences=k, max_new_tokens=length,
        length_penalty=0.0, do_sample=False,
        prefix_allowed_tokens_fn=lambda _, seen: following[tuple(seen[len(prompt):].tolist())])
    return [tuple(path) for path in found[:, len(prompt):].tolist()]
