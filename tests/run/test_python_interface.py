"""The Python interface writes the texts of the job."""

from shard_helpers import prepared, prompt, write

from dare_job import LLM, Pool


def test_texts_are_those_of_a_worker(tmp_path):
    prompts = {f"u{number:02}": prompt(number) for number in range(9)}
    rows = write(prepared(tmp_path, nodes=16), prompts)
    texts = [rows[name]["knowledge"] for name in prompts]
    llm = LLM("embedded", decode={"min_new_tokens": 20, "batch_size": 4, "nodes": 16})
    pool = Pool.from_texts(texts[:5], model="embedded")
    written = llm.generate(list(prompts.values()), previous=[None, *texts[1:]], pool=pool, max_new_tokens=20)
    assert [text.text for text in written] == texts
    for name, text in zip(prompts, written, strict=True):
        assert list(text.token_ids) == rows[name]["token_ids"]
        assert (text.finish_reason, text.prompt_tokens) == (rows[name]["finish_reason"],
                                                            rows[name]["prompt_tokens"])
    assert sum(text.steps for text in written) < sum(row["target_steps"] for row in rows.values())
