"""Long spans that a text shares with another row's."""

import random

import pyarrow as pa

from dare_job.publish.gate.shared_spans import RUN, SharedSpans


def words(seed, count):
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghij", k=6)) for _ in range(count)]


def found(*batches):
    spans = SharedSpans()
    return [spans.add(pa.array(texts), pa.array([f"{batch}-{row}" for row in range(len(texts))])).tolist()
            for batch, texts in enumerate(batches)]


def test_a_span_counts_from_the_second_row_on_in_one_batch_and_over_batches():
    span = words(1, 60)
    first = " ".join([*words(2, 30), *span, *words(3, 30)])
    second = ", ".join([*words(4, 10), *[word.upper() for word in span], *words(5, 40)]) + "."
    other = " ".join(words(6, 100))
    for batches in ([[first, other, second]], [[first], [other], [second]]):
        lengths = [length for batch in found(*batches) for length in batch]
        assert lengths[:2] == [0, 0] and 60 - 20 <= lengths[2] <= 60


def test_the_longest_span_counts_and_texts_do_not_run_into_one_another():
    spans = words(1, 40), words(2, 100)
    texts = [" ".join(spans[0]), " ".join(spans[1]), " ".join([*spans[0], *words(3, 5), *spans[1]]), "", None]
    lengths = found([text or "" for text in texts])[0]
    assert lengths[:2] == [0, 0] and 80 <= lengths[2] <= 100 and lengths[3:] == [0, 0]
    ends = " ".join(words(4, RUN // 2)), " ".join(words(5, RUN // 2))
    assert found([*ends, " ".join(ends)])[0] == [0, 0, 0]


def test_short_spans_are_phrases_and_equal_prompts_may_have_equal_texts():
    phrase = words(1, RUN - 1)
    texts = [" ".join([*words(seed, 20), *phrase, *words(seed + 100, 20)]) for seed in range(2, 6)]
    assert found(texts)[0] == [0] * 4
    text = " ".join(words(9, 80))
    spans = SharedSpans()
    assert spans.add(pa.array([text, text]), pa.array(["same", "same"])).tolist() == [0, 0]
    assert spans.add(pa.array([text]), pa.array(["another"]))[0] >= 60
