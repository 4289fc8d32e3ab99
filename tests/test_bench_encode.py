"""The measurement of encoding runs, and sorting by length never pads more than the order of the texts."""

import json

from dare_job.bench.encode import main


def test_texts_of_the_sample_are_encoded_both_ways(capsys):
    main(model="embedded", users=12, batch="4", threads=1, repeats=1)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [(row["texts"], row["order"]) for row in found] == [
        (entity, order) for entity in ("user", "item") for order in ("by length", "as they come")]
    for sorted_, given in zip(found[::2], found[1::2], strict=True):
        assert sorted_["count"] == given["count"] > 4 and sorted_["tokens_a_text"] == given["tokens_a_text"]
        assert 0 <= sorted_["padding_share"] <= given["padding_share"] < 0.6
        assert sorted_["texts_per_cpu_s"] > 0 < given["texts_per_cpu_s"]
