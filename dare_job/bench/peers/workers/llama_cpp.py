"""llama.cpp: without drafts, and its drafts from the prompt and the text so far.

``ngram-simple`` drafts here the 5 tokens that followed the last two, vLLM's fewest. With its defaults it
drafts 48 where the last twelve occur before, which they hardly do in texts of this kind. In float32 keys and
values are float32 too, in place of llama.cpp's default, float16.

The server runs in this process and decodes ``batch`` rows at the same time. It reads the model from a GGUF
file with unquantized weights, which this script makes of a Llama model's folder.
"""

import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import harness
import numpy as np
import torch
import xllamacpp
from safetensors import safe_open

_LENGTH = 2048  # tokens of a prompt and its text
_KIND = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE
_MATCH, _DRAFT = 2, 5  # tokens that have to occur before, and tokens of a draft


class Engine:
    def __init__(self, task: dict, method: str, dtype: str):
        self._task, self._method, self._dtype = task, method, dtype
        self._file = convert(task["model"], task["work"], dtype)
        self._server, self._slots = None, 0
        self.accepted = self.reused = 0

    def write(self, rows: list, batch: int, max_new_tokens: int) -> list:
        if self._slots != batch:
            self._start(batch)
        with ThreadPoolExecutor(batch) as pool:
            answers = list(pool.map(lambda row: self._complete(row["prompt"], max_new_tokens), rows))
        self.accepted += sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers)
        return [answer["tokens"] for answer in answers]

    def forget(self) -> None:
        """Start again with empty caches."""
        self._start(self._slots)

    def _start(self, slots: int) -> None:
        self._server, self._slots = None, slots  # frees the server before
        self._server = xllamacpp.Server(self._params(slots))

    def _complete(self, prompt: list, max_new_tokens: int) -> dict:
        penalty = self._task["repetition_penalty"] or 1.0
        penalized = _LENGTH if penalty != 1 else 0
        body = {"prompt": prompt, "n_predict": max_new_tokens, "temperature": 0, "cache_prompt": True,
                "return_tokens": True, "repeat_penalty": penalty, "repeat_last_n": penalized,
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
        if self._dtype == "float32":
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        if self._method == "lookup":
            params.speculative.types = [_KIND]
            params.speculative.ngram_simple.size_n = _MATCH
            params.speculative.ngram_simple.size_m = _DRAFT
        return params


_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
          "lm_head.weight": "output.weight"}
_PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
          "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
          "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
          "mlp.down_proj": "ffn_down"}
_TYPES = {"float32": gguf.LlamaFileType.ALL_F32, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}
_NORMAL, _CONTROL = 1, 3


def convert(folder: str, work: str, dtype: str) -> Path:
    """Return the file in ``work``; write it unless it exists."""
    path = Path(work) / f"{Path(folder).name}-{dtype}.gguf"
    if not path.exists():
        partial = path.with_suffix(".partial")
        _write(Path(folder), partial, dtype)
        partial.rename(path)
    return path


def _write(folder: Path, path: Path, dtype: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "llama":
        raise SystemExit(f"llama.cpp is measured with Llama models alone; {folder} is {config['model_type']}")
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(_TYPES[dtype])
    _add_tokenizer(writer, folder, config)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no dict
                _add_tensor(writer, name, weights.get_tensor(name).float(), heads, groups, dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensor(writer, name: str, values: torch.Tensor, heads: int, groups: int, dtype: str) -> None:
    if layer := re.match(r"model\.layers\.(\d+)\.(.+)\.weight$", name):
        part = _PARTS[layer[2]]
        if part in ("attn_q", "attn_k"):  # pairs of rotated values lie beside each other
            count = heads if part == "attn_q" else groups
            values = values.reshape(count, 2, -1, values.shape[-1]).transpose(1, 2).reshape(values.shape)
        target = f"blk.{layer[1]}.{part}.weight"
    else:
        target = _NAMES[name]
    array = values.contiguous().numpy()
    if dtype == "bfloat16" and array.ndim == 2:
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(target, gguf.quants.quantize(array, kind), raw_dtype=kind)
    else:
        writer.add_tensor(target, array.astype(np.float32))


def _add_tokenizer(writer, folder: Path, config: dict) -> None:
    """The tokens' texts, so that the server can start; prompts and texts are exchanged as token ids."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    texts = [f"[unused{number}]" for number in range(config["vocab_size"])]
    kinds = [_NORMAL] * len(texts)
    for text, number in tokenizer["model"]["vocab"].items():
        texts[number] = text
    for token in tokenizer["added_tokens"]:
        texts[token["id"]], kinds[token["id"]] = token["content"], _CONTROL if token["special"] else _NORMAL
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    generation = json.loads((folder / "generation_config.json").read_text())
    eos = generation.get("eos_token_id", config["eos_token_id"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(eos if isinstance(eos, int) else eos[0])
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    harness.run(Engine)
