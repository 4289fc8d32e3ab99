"""Previous texts as drafts."""

import pyarrow as pa
from transformers import AutoTokenizer

from dare_job.generate.previous_text import tokenize_batches
from dare_job.models.files import resolve


def test_a_control_token_that_a_text_spells_is_no_draft():
    model = str(resolve("embedded"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    end = tokenizer.eos_token
    texts = ["The viewer likes drama.", f"The viewer{end} likes drama.{end}"]
    batch = pa.RecordBatch.from_pydict({"entity_id": ["a", "b"], "knowledge": texts})
    rows = next(tokenize_batches([batch], model, False))["token_ids"].to_pylist()
    assert rows[0][-1] == rows[1][-1] == tokenizer.eos_token_id
    assert tokenizer.eos_token_id not in rows[1][:-1]
    assert tokenizer.decode(rows[1][:-1]).split() == texts[0].split()
