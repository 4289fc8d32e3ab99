"""vLLM without drafts on the same prompts and number of tokens, in a process of its own.

Its drafts are left out: they depend on what the model writes, and random weights write noise. ``bench peers``
compares them on the texts of a real model.

As a script, with a task's file: reads it, writes the texts, and prints seconds as JSON. The script needs vLLM
and the standard library alone.
"""

import json
import os
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

_SHARE = 0.9  # of the free memory
_ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "4"}


def generate(target, task, meter) -> tuple[float, None]:
    """Seconds of one call for all prompts; joules are not measured, because vLLM is loaded meanwhile.

    Raises
    ------
    RuntimeError
        vLLM is not installed, or it ended with an error; the message has its last lines.
    """
    from dare_job.bench.peers import environments

    python = environments.python_of("vllm", Path(), "cuda")
    if subprocess.run([python, "-c", "import vllm"], capture_output=True).returncode:
        raise RuntimeError(f"{python} has no vllm; {environments.INTERPRETER} can name another interpreter")
    cpus = sorted(os.sched_getaffinity(0))
    prompts = [request.prompt_ids.tolist() for request in task.requests]
    work = {"model": _saved(target).name, "dtype": str(target.dtype).removeprefix("torch."),
            "new": task.longest, "prompts": prompts, "length": max(map(len, prompts)) + task.longest,
            "share": _free_share(target.device)}
    file = Path(work["model"]) / "task.json"
    file.write_text(json.dumps(work), encoding="utf-8")
    # -P: no module beside this file stands for a package that vLLM imports, such as kernels
    done = subprocess.run([python, "-P", __file__, str(file)], capture_output=True, text=True,
                          env=environments.variables("vllm", python, cpus, "cuda") | _ON_CPU)
    if done.returncode:
        raise RuntimeError(f"vllm ended with exit code {done.returncode}: "
                           f"{(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])["seconds"], None


@lru_cache(maxsize=1)
def _saved(target) -> TemporaryDirectory:
    """The model's folder, which is removed when this process ends."""
    folder = TemporaryDirectory()
    with target.as_transformers() as model:
        model.save_pretrained(folder.name)
    return folder


def _free_share(device) -> float:
    """The share of a GPU's memory that vLLM may use: most of what is free."""
    if device.type != "cuda":
        return _SHARE
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return _SHARE * free / total


def main() -> None:
    """Write the texts of a task's file."""
    from vllm import LLM, SamplingParams

    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    llm = LLM(task["model"], dtype=task["dtype"], max_model_len=task["length"], skip_tokenizer_init=True,
              max_num_seqs=len(task["prompts"]), gpu_memory_utilization=task["share"],
              enable_prefix_caching=True, generation_config="vllm")
    prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]

    def write(new: int) -> float:
        began = time.perf_counter()
        params = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True,
                                detokenize=False)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        if any(len(output.outputs[0].token_ids) != new for output in outputs):
            raise SystemExit("a text has another number of tokens")
        return time.perf_counter() - began

    write(8)  # compiles and records; prompts of later runs must not be cached
    llm.reset_prefix_cache()
    print(json.dumps({"seconds": write(task["new"])}))


if __name__ == "__main__":
    main()
