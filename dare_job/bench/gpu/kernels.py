"""What to know first of a device: whether its attention over pages is right, and what new shapes cost.

Flash attention over pages runs on no CPU. Here it reads texts of different lengths, and is compared with the
plain attention that defines it, in float32, on the same values. And what a level of a trie of item ids costs
beside the forward pass, in constrained beam search.
"""

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from dare_job.bench.gpu.curves import dtype
from dare_job.bench.gpu.machine import median_ms
from dare_job.decode.model.paged.attention import text_attention
from dare_job.decode.model.paged.pool import PAGE
from dare_job.decode.trie_search.beams import best, candidates
from dare_job.decode.trie_search.trie import NONE, Trie, Vocabulary
from dare_job.evaluate.measured import timed

TOLERANCE = 0.03  # of outputs and log-sum-exp of standard normal values in bfloat16
_HEADS, _GROUPS, _DIM = 8, 2, 128
_CASES = {"trees": (False, 0), "prompts": (True, 0), "prompts in a window": (True, 100)}
_ROWS, _PAGES, _NODES = 4, 2, 16
_NEW_SHAPES = 4
CONSTRAINT, LEVEL = "children and their log-probabilities", "a level, its best beams included"
_CODES, _SMALL_CODES = 272, 12  # of a level, at each of three levels: 20 million ids, and 1,728
_BEAMS = ((2, 70), (32, 20))  # rows, and beams of each


@torch.inference_mode()
def attention(device: torch.device) -> list[dict]:
    """A row per use of attention over pages: its largest differences from plain attention in float32.

    As in a pass, each row's pages follow each other, and a row without a text ends the queries.
    """
    rng, lines = np.random.default_rng(0), []
    lengths = np.append(rng.integers(_NODES, _PAGES * PAGE, _ROWS), 0)
    table = np.append(1 + np.arange(_ROWS * _PAGES), [0] * _PAGES).reshape(-1, _PAGES)
    keys, values = torch.randn((2, (_ROWS * _PAGES + 1) * PAGE, _GROUPS, _DIM), device=device).bfloat16()
    for name, (causal, window) in _CASES.items():
        counts = np.append(rng.integers(1, lengths[:-1] if causal else _NODES + 1, _ROWS), 5)
        starts, own = np.append(0, np.cumsum(counts)), int(counts[:-1].sum())
        query = torch.randn((int(starts[-1]), _HEADS, _DIM), device=device).bfloat16()
        places = [torch.from_numpy(x.astype(np.int32)).to(device) for x in (starts, lengths, table)]
        options = None, _DIM**-0.5, causal, window, int(counts.max())
        ours = text_attention(query, keys, values, *places, *options)
        exact = text_attention(query.float(), keys.float(), values.float(), *places, *options)
        out, lse = ((x[:own].float() - y[:own]).abs().max().item() for x, y in zip(ours, exact, strict=True))
        lines.append({"attention": name, "difference": round(out, 5), "of_log_sum_exp": round(lse, 5),
                      "right": out <= TOLERANCE and lse <= TOLERANCE})
    return lines


@torch.inference_mode()
def shapes(device: torch.device, small: bool) -> list[dict]:
    """Milliseconds of attention with a mask at its first and later calls, and of a product by its rows.

    The first calls tell whether cuDNN makes a plan for each shape, the products what padding costs.
    """
    width, lines, before = 256 if small else 4096, [], torch.backends.cuda.cudnn_sdp_enabled()
    for on in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(on)
        first, later = zip(*(_first_and_later_ms(device, 300 + 16 * shape + 8 * on)
                             for shape in range(_NEW_SHAPES)), strict=True)
        lines.append({"call": f"attention of a new shape, cuDNN {'on' if on else 'off'}",
                      "first_ms": round(max(first[1:]), 3), "ms": round(min(later), 3)})
    torch.backends.cuda.enable_cudnn_sdp(before)
    weight = torch.randn((width, 3 * width), device=device, dtype=dtype(device))
    for rows in (512, 544, 576):
        values = torch.randn((rows, width), device=device, dtype=dtype(device))
        ms = median_ms(lambda values=values: values @ weight, device, 7)
        lines.append({"call": f"product of {rows} rows", "first_ms": None, "ms": round(ms, 4)})
    return lines


@torch.inference_mode()
def trie(device: torch.device, small: bool) -> list[dict]:
    """Milliseconds of constrained beam search at the last level of a trie, without the forward pass.

    The beams are at random nodes, from numbers on the host to tensors on the device, as in the search.
    """
    codes = _SMALL_CODES if small else _CODES
    ids = full_trie(codes, 3)
    vocabulary, rng, lines = Vocabulary(ids, [0, codes, 2 * codes], device), np.random.default_rng(0), []
    for rows, beams in _BEAMS:
        nodes = np.sort(ids.starts[2] + rng.integers(0, codes**2, (rows, beams)))
        logits = torch.randn((rows * beams, 3 * codes), device=device)
        scores = torch.randn((rows, beams), device=device)

        def constraint(nodes=nodes, logits=logits) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            children, present = vocabulary.children(nodes)
            values = logits.gather(1, vocabulary.token[children].flatten(0, 1)).view(children.shape)
            return children, present, values.masked_fill(~present, -torch.inf)

        def level(scores=scores, beams=beams, constraint=constraint):
            return best(candidates(scores, *constraint()), beams)

        for part, call in ((CONSTRAINT, constraint), (LEVEL, level)):
            lines.append({"ids": ids.leaves, "rows": rows, "beams": beams, "part": part,
                          "ms": round(median_ms(call, device, 7), 4)})
    return lines


def full_trie(codes: int, length: int) -> Trie:
    """Return the trie of all ids of ``length`` codes, of which each has this many values.

    As ``Trie.from_codes``, which would sort the table of codes for minutes.
    """
    sizes = codes ** np.arange(length + 1)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    number = [np.arange(size) for size in sizes]
    inner = starts[-2]
    counts = np.where(np.arange(starts[-1]) < inner, codes, 0)
    spans = sizes[-1] // sizes
    return Trie(
        codes=np.concatenate([[NONE], *(nodes % codes for nodes in number[1:])]).astype(np.int32),
        levels=np.repeat(np.arange(length + 1), sizes).astype(np.int32),
        parents=np.concatenate([[NONE], *(starts[level] + number[level + 1] // codes
                                          for level in range(length))]),
        first=1 + np.cumsum(counts) - counts,
        counts=counts,
        starts=starts,
        leaf_ends=np.concatenate([np.stack((nodes, nodes + 1), axis=1) * span
                                  for nodes, span in zip(number, spans, strict=True)]),
        rows=number[-1])


def _first_and_later_ms(device: torch.device, columns: int) -> tuple[float, float]:
    query, keys = (torch.randn((4, 8, tokens, 64), device=device, dtype=dtype(device))
                   for tokens in (16, columns))
    mask = torch.zeros((4, 1, 16, columns), device=device, dtype=dtype(device))

    def call() -> torch.Tensor:
        return scaled_dot_product_attention(query, keys, keys, mask)

    return 1e3 * timed(call, device)[1], median_ms(call, device, 5)
