"""llama.cpp: plain, and its drafts from the prompt and the text so far (``ngram-simple``).

The server runs in this process and decodes ``batch`` rows at the same time.
"""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import gguf_file
import harness
import xllamacpp

_LENGTH = 2048  # tokens of a prompt and its text
_DRAFTS = {"plain": None, "lookup": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE}


class Engine:
    def __init__(self, task: dict, method: str, dtype: str):
        self._task, self._method = task, method
        self._file = gguf_file.convert(task["model"], task["work"], dtype)
        self._server, self._slots = None, 0
        self.accepted = 0

    def write(self, rows: list, batch: int, max_new_tokens: int) -> list:
        if self._slots != batch:
            self._server, self._slots = None, batch  # frees the server before
            self._server = xllamacpp.Server(self._params(batch))
        with ThreadPoolExecutor(batch) as pool:
            answers = list(pool.map(lambda row: self._complete(row["prompt"], max_new_tokens), rows))
        self.accepted += sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers)
        return [answer["tokens"] for answer in answers]

    def forget(self) -> None:
        """Do nothing: drafts come from a row's own prompt and text."""

    def _complete(self, prompt: list, max_new_tokens: int) -> dict:
        penalty = self._task["repetition_penalty"] or 1.0
        body = {"prompt": prompt, "n_predict": max_new_tokens, "temperature": 0, "cache_prompt": False,
                "return_tokens": True, "repeat_penalty": penalty, "repeat_last_n": -1 if penalty != 1 else 0,
                "samplers": ["penalties", "temperature"] if penalty != 1 else ["temperature"]}
        request = urllib.request.Request(f"{self._server.listening_address}/completion",
                                         json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def _params(self, batch: int):
        params = xllamacpp.CommonParams()
        params.model.path, params.n_parallel, params.n_ctx = str(self._file), batch, batch * _LENGTH
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._task["threads"]
        params.cache_ram_mib, params.verbosity, params.warmup = 0, -1, True
        if _DRAFTS[self._method] is not None:
            params.speculative.types = [_DRAFTS[self._method]]
        return params


if __name__ == "__main__":
    harness.run(Engine)
