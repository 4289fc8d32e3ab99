"""Texts from Python: equal to those of transformers whatever drafts there are; errors name what to change."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from api_texts import FILMS, TITLES, film, greedy, model_and_tokenizer

from dare_job import LLM, Pool
from dare_job.decode.engine.engine import Engine
from dare_job.errors import ConfigError, InfrastructureError, ModelError, PoolError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plain(llm):
    return llm.generate(FILMS, drafts=False)


def test_texts_are_those_of_transformers(plain):
    _, tokenizer = model_and_tokenizer()
    assert [completion.index for completion in plain] == list(range(len(FILMS)))
    for place, (completion, prompt) in enumerate(zip(plain[:3], FILMS, strict=False)):
        assert completion.error is None and tuple(completion.token_ids) == greedy(prompt)
        assert completion.text == tokenizer.decode(greedy(prompt), skip_special_tokens=True).strip()
        assert completion.finish_reason == "eos" and TITLES[place] in completion.text


def test_drafts_change_the_steps_and_not_the_texts(llm, plain):
    changed = [text.text.replace("drama", "comedy") for text in plain]
    pool = Pool.from_texts([text.text for text in plain[:4]], model="embedded")
    drafted = llm.generate(FILMS, previous=[*changed[:-1], None], pool=pool)
    for before, after in zip(plain, drafted, strict=True):
        assert after.text == before.text and np.array_equal(after.token_ids, before.token_ids)
        assert after.steps < before.steps and after.accepted_per_step > 0
        assert after.step_tokens.sum() == len(after.token_ids) and len(after.step_tokens) == after.steps + 1
        assert after.step_tokens[0] == after.reused_tokens + 1
        assert 0 <= after.draft_ms < after.decode_ms and 0 < after.prompt_ms < after.decode_ms
    assert {text.accepted_tokens for text in plain} == {0}
    assert drafted[0].reused_tokens > 5 and drafted[-1].reused_tokens == 0


def test_previous_texts_as_token_ids_are_reused_whole(llm, plain):
    same, = llm.generate(FILMS[:1], previous=[plain[0].token_ids])
    assert same.text == plain[0].text and same.steps < 0.2 * len(same.token_ids)


def test_results_come_while_others_are_decoded(llm, plain):
    steps, iterator = [], llm.iterate(FILMS, max_new_tokens=12)
    for completion in iterator:
        steps.append(completion.index)
        assert completion.finish_reason == "length" and len(completion.token_ids) == 12
        assert plain[completion.index].text.startswith(completion.text)
        if len(steps) == 2:
            break
    iterator.close()
    assert len(set(steps)) == 2 < len(FILMS)
    assert llm.generate(FILMS[:1])[0].text == plain[0].text  # after an iteration that did not end


def test_conversations_are_rendered_as_by_the_chat_template(llm, monkeypatch):
    template = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
                "{% if add_generation_prompt %}[assistant] {% endif %}")
    seen, run = [], Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, requests: run(self, [
        request for request in requests if seen.append(request.prompt_ids) is None]))
    tokenizer = llm._tokens.tokenizer
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a film."},
                {"role": "assistant", "content": "Old Road."}, {"role": "user", "content": "Another one."}]
    monkeypatch.setattr(tokenizer, "chat_template", template)
    assert llm.generate([messages], max_new_tokens=2)[0].error is None
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert np.array_equal(seen[0], tokenizer(expected, add_special_tokens=False)["input_ids"])


FAILING = {  # by message
    "the prompt is empty": ("", "  \n", [{"role": "user", "content": " "}]),
    "they must be user and assistant in turn": ([], [{"role": "tool", "content": "a"}]),
    "end with user": ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],),
    "list of messages": ([{"role": "user"}], 7, None),
    "the content of each message must be a string": ([{"role": "user", "content": 7}],),
    "no room to generate": ("x " * 3000,)}


def test_a_prompt_that_fails_does_not_affect_the_others(llm, plain):
    expected = [(prompt, message) for message, prompts in FAILING.items() for prompt in prompts]
    first, *failed, last = llm.generate([FILMS[0], *(prompt for prompt, _ in expected), FILMS[1]])
    assert (first.text, last.text) == (plain[0].text, plain[1].text)
    for place, (completion, (_, message)) in enumerate(zip(failed, expected, strict=True), 1):
        assert completion.index == place and completion.finish_reason == "error" and completion.text == ""
        assert message in completion.error and completion.error.startswith(f"prompts[{place}]: ")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"prompts": "a"}, r"prompts is one str: pass a list"),
    ({"prompts": {"role": "user"}}, "prompts is one dict"), ({"prompts": 7}, "prompts is one int"),
    ({"previous": "a"}, "previous is one str"),
    ({"previous": ["a"]}, "previous has 1 entries and prompts has 2: give one for each"),
    ({"previous": ["a", 7]}, r"previous\[1\] is 7: pass a text, or its token ids"),
    ({"previous": ["a", [1, 10**6]]}, r"previous\[1\] has token ids from 1 to 1000000, and the model has"),
    ({"pool": ["a text"]}, r"pool is 'a text': make it with Pool.from_texts\(texts, model='embedded'\)"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0"), ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5")])
def test_invalid_arguments(llm, arguments, message):
    with pytest.raises(ConfigError, match=message):
        llm.iterate(**{"prompts": ["a", "b"], **arguments})


def test_a_pool_of_another_tokenizer(llm):
    pool = Pool.from_texts(["a text"], model="embedded")
    pool._tokenizer = "0" * 64
    with pytest.raises(PoolError, match=r"pool: it was made with another tokenizer \(000000000000\).*"
                                        r"Pool.from_texts\(texts, model='embedded'\)"):
        llm.generate(["a"], pool=pool)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"model": "/no/such/folder"}, ModelError, "model folder /no/such/folder does not exist"),
    ({"model": ""}, ConfigError, "model.name = ''"),
    ({"dtype": "float8"}, ConfigError, "model.dtype = 'float8'.*bfloat16"),
    ({"decode": {"batch_size": 0}}, ConfigError, "decode.batch_size = 0"),
    ({"decode": {"batchsize": 1}}, ConfigError, "key decode.batchsize .did you mean batch_size.*"),
    ({"verify": {"rule": "loose"}}, ConfigError, "verify.rule = 'loose'.*relaxed"),
    ({"verify": {"target": "cosine=0.98", "curve": "c.json"}}, ConfigError, "verify.target.*set verify.rule"),
    ({"sample": {"logit_bias": {10**6: 1.0}}, "decode": {"mode": "sample"}}, ConfigError, "remove 1000000"),
    ({"drafter": {"model": "/no/folder"}}, ModelError, "/no/folder does not exist")])
def test_invalid_models_and_settings(arguments, error, message):
    with pytest.raises(error, match=message):
        LLM(**{"model": "embedded", **arguments})


def test_running_out_of_memory_names_the_setting(llm, monkeypatch):
    def fail(*args, **options):
        raise MemoryError("cannot allocate")

    monkeypatch.setattr(type(llm._loaded.target), "prefill", fail)
    with pytest.raises(InfrastructureError, match=r"out of memory with decode.batch_size = 3: lower it"):
        llm.generate(FILMS)


@pytest.mark.slow
def test_relaxed_sampled_and_beam_texts(plain):
    pool = Pool.from_texts([text.text for text in plain], model="embedded")
    settings = {"decode": {"nodes": 8, "batch_size": 2}, "verify": {"rule": "relaxed", "k": 64, "p": 0.0}}
    others = [text.text for text in (*plain[1:], plain[0])]
    relaxed = LLM("embedded", **settings).generate(FILMS, previous=others)
    assert sum(text.relaxed_tokens for text in relaxed) > 0
    sampled = [LLM("embedded", seed=seed, sample={"temperature": 1.5},
                   decode={"mode": "sample", "batch_size": batch}).generate(FILMS)
               for seed, batch in ((1, 2), (1, 3), (2, 2))]
    texts = [[completion.text for completion in each] for each in sampled]
    assert texts[0] == texts[1] != texts[2]
    beams = LLM("embedded", decode={"mode": "beam"}, sample={"temperature": 0}, beam={"width": 2})
    assert all(text.error is None and text.text for text in beams.generate(FILMS[:2], pool=pool))


@pytest.mark.slow
def test_a_draft_model(llm, plain, tmp_path):
    from dare_job.models import embedded_path

    drafted = LLM("embedded", drafter={"model": str(embedded_path()), "tree": "2x1"}, decode={"nodes": 4})
    texts = drafted.generate(FILMS[:2])
    assert [text.text for text in texts] == [text.text for text in plain[:2]]
    assert min(text.accepted_per_step for text in texts) > 1.8  # of 2: it is the model itself


CODE = """
import sys
import dare_job
assert sorted(dir(dare_job)) and not {"torch", "numpy", "pydantic", "pyarrow"} & sys.modules.keys()
sys.modules.update(dict.fromkeys(("pyspark", "faiss", "airflow")))
llm = dare_job.LLM("embedded", decode={"nodes": 8})
pool = dare_job.Pool.from_texts(["a film of the sea"], model="embedded")
print(llm.generate([sys.argv[1]], pool=pool)[0].text)
replay, = dare_job.replay(["a film of the sea at night"], "embedded", pool=pool, nodes=[8])
print(replay.accepted_per_step > 0)
"""


@pytest.mark.slow
def test_it_works_without_spark_and_faiss_and_imports_nothing_before_it_is_used(plain):
    done = subprocess.run([sys.executable, "-c", CODE, film(TITLES[0])], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [plain[0].text, "True"]
    assert "Loading weights" not in done.stderr
