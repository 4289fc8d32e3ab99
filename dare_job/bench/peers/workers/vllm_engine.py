"""vLLM: without drafts, n-gram drafts, and suffix drafts warmed by the earlier texts."""

import harness
from arctic_inference.suffix_decoding import SuffixDecodingCache
from vllm import LLM, SamplingParams

_LENGTH = 2048  # tokens of a prompt and its text
_CACHED_REQUESTS = 10000  # vLLM's default
_SPECULATION = {
    "plain": None,
    "n-gram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4,
               "prompt_lookup_min": 2},
    "suffix": {"method": "suffix", "num_speculative_tokens": 16}}


class Engine:
    """One engine process. Prefix caching is on, as is vLLM's default, and ``forget`` empties it."""

    reused = 0

    def __init__(self, task: dict, method: str, dtype: str):
        self._task = task
        self._llm = LLM(
            task["model"], dtype=dtype, max_num_seqs=max(batch for batch, _ in task["batches"]),
            max_model_len=_LENGTH, enable_prefix_caching=True, speculative_config=_SPECULATION[method],
            disable_log_stats=False, generation_config="vllm")
        self._core = self._llm.llm_engine.engine_core.engine_core
        self._drafts_from_texts = method == "suffix"

    def write(self, rows: list, batch: int, max_new_tokens: int) -> list:
        self._core.scheduler.max_num_active_reqs = batch
        params = SamplingParams(
            temperature=0, max_tokens=max_new_tokens, stop_token_ids=self._task["eos"], detokenize=False,
            repetition_penalty=self._task["repetition_penalty"] or 1.0)
        prompts = [{"prompt_token_ids": row["prompt"]} for row in rows]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    @property
    def accepted(self) -> int:
        return sum(int(metric.value) for metric in self._llm.get_metrics()
                   if metric.name == "vllm:spec_decode_num_accepted_tokens")

    def forget(self) -> None:
        """Drop the prefixes, and make a suffix tree of the earlier texts, as if it had written no others."""
        self._llm.reset_prefix_cache()
        if not self._drafts_from_texts:
            return
        drafter = self._core.model_executor.driver_worker.worker.model_runner.drafter
        drafter.suffix_cache = cache = SuffixDecodingCache(drafter.max_tree_depth, _CACHED_REQUESTS)
        for number, text in enumerate(self._task["pool"]):
            cache.start_request(f"earlier-{number}", [])
            cache.add_active_response(f"earlier-{number}", text)
            cache.stop_request(f"earlier-{number}")


if __name__ == "__main__":  # vLLM may import this file again in a process of its own
    harness.run(Engine)
