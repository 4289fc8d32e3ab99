"""What the gate's checks say of recorded text that nobody complained about, and of the same made to loop.

    python -m dare_job.bench.gate_texts --text FILE --column NAME --tokenizer PATH

Shares by check, with default settings. Recorded text says nothing of why it ended, so a text that a limit cut
off counts as one that ended by itself. Loops are also looked for in half of each text followed by its last
tokens 4 times, for n-grams of several lengths: what the check must find. The last line is JSON.
"""

import json

import numpy as np
import pyarrow as pa
import typer

from dare_job.cli import options
from dare_job.config.settings import GateSettings
from dare_job.evaluate.replay import texts as recorded
from dare_job.publish.gate.checks import LOOP_NGRAM, LOOP_REPEATS, LOOP_TOKENS, Texts, counted, looping
from dare_job.schemas import KNOWLEDGE

_N_GRAMS = (6, 12, 24, 32)


def main(text: options.Text, column: options.Column, tokenizer: options.Tokenizer) -> None:
    """Count what each check of single texts counts in recorded text."""
    found, gates = recorded.read(text, column), GateSettings()
    ids = recorded.load_tokenizer(tokenizer)(found.texts)
    rows = [{"entity_id": name, "knowledge": words, "token_ids": tokens, "tokens": len(tokens),
             "finish_reason": "eos", "run_id": "recorded"}
            for name, words, tokens in zip(found.ids, found.texts, ids, strict=True)]
    checks = counted(Texts.of(pa.RecordBatch.from_pylist(rows, schema=KNOWLEDGE)), gates)
    shares = {check: round(float(bad.mean()), 6) for check, (bad, _) in checks.items()}
    made = {n: round(_found(ids, n, gates), 6) for n in _N_GRAMS}
    loops = [name for name, bad in zip(found.ids, checks["loop"][0], strict=True) if bad]
    print(f"{len(ids)} texts: " + ", ".join(f"{check} {share:.2%}" for check, share in shares.items()))
    print("loops found: " + ", ".join(f"{n} tokens 4 times {share:.2%}" for n, share in made.items()))
    print(json.dumps({"texts": len(ids), "shares": shares, "loops_found_by_n": made, "loops": loops[:20]}))


def _found(ids: list[np.ndarray], n: int, gates: GateSettings) -> float:
    """Share of texts of 2 n tokens or more, cut in half and sent into a loop of n tokens, that are found."""
    halves = [tokens[:len(tokens) // 2] for tokens in ids if len(tokens) >= 2 * n]
    made = [np.concatenate([half, np.tile(half[-n:], 3)]) for half in halves]
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in made])])
    loops = looping(np.concatenate(made), offsets, LOOP_NGRAM, LOOP_REPEATS, LOOP_TOKENS)
    return float((loops > 0).mean())


if __name__ == "__main__":
    typer.run(main)
