"""vLLM without drafts on the same prompts and numbers of tokens, in a process of its own.

Its drafts are left out: they depend on what the model writes, and random weights write noise. ``bench peers``
compares them on the texts of a real model.

As a script, with a file of tasks: writes the texts of one task after the other, and prints the seconds of
each as JSON. The script needs vLLM and the standard library alone.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

_SHARE = 0.9  # of the free memory
_ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "4"}


def interpreter() -> tuple[Path, str]:
    """The Python that runs vLLM, and why it cannot; empty if it can."""
    from dare_job.bench.peers import environments

    python = environments.python_of("vllm", Path(), "cuda")
    check = "import importlib.util as u; exit(u.find_spec('vllm') is None)"
    try:
        lacking = subprocess.run([python, "-c", check], capture_output=True).returncode != 0
    except OSError as error:
        return python, f"{python} cannot run: {error.strerror}"
    why = f"{python} has no vllm; {environments.INTERPRETER} can name another interpreter"
    return python, why if lacking else ""


def generate(python: Path, target, tasks: Mapping[int, object], limit_s: float | None
             ) -> tuple[dict[int, float], str]:
    """Seconds of the texts of each batch size, and why some are missing.

    One process writes them all, because its start takes minutes: it compiles and records graphs. Its weights
    are random, too, and of the same shape. Joules are not measured, because a process that starts uses some.

    Parameters
    ----------
    python : Path
        An interpreter with vLLM.
    target : Target
    tasks : mapping of int to Task
        By batch size.
    limit_s : float, optional
        Seconds of the process. None: unlimited.

    Returns
    -------
    dict, str
        The second one is empty if all were measured.
    """
    from dare_job.bench.peers import environments

    cpus = sorted(os.sched_getaffinity(0))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tasks.json"
        file.write_text(json.dumps(_content(target, tasks, folder)), encoding="utf-8")
        # -P: no module beside this file stands for a package that vLLM imports, such as kernels
        command = [python, "-P", __file__, str(file)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s,
                                  env=environments.variables("vllm", python, cpus, "cuda") | _ON_CPU)
            printed, code, errors = done.stdout, done.returncode, done.stderr
        except subprocess.TimeoutExpired as late:
            printed, code, errors = (late.stdout or b"").decode(), None, ""
    found = {int(batch): seconds for line in printed.splitlines() if line.startswith("{")
             for batch, seconds in json.loads(line).items()}
    if code is None:
        return found, f"left out for lack of time: vllm had {limit_s:.0f} s; a larger --seconds gives it more"
    last = (errors.strip() or "no message").splitlines()[-1]
    return found, f"vllm ended with exit code {code}: {last}" if code else ""


def _content(target, tasks: Mapping[int, object], folder: str) -> dict:
    """The file of the tasks; writes the model's configuration to the folder."""
    config = deepcopy(target.model.config)
    config.architectures = [type(target.model).__name__]
    config.save_pretrained(folder)
    works = [{"batch": batch, "new": task.longest,
              "prompts": [request.prompt_ids.tolist() for request in task.requests]}
             for batch, task in tasks.items()]
    return {"model": folder, "dtype": str(target.dtype).removeprefix("torch."), "tasks": works,
            "rows": max(len(work["prompts"]) for work in works),
            "length": max(max(map(len, work["prompts"])) + work["new"] for work in works),
            "share": _free_share(target.device)}


def _free_share(device) -> float:
    """The share of a GPU's memory that vLLM may use: most of what is free."""
    if device.type != "cuda":
        return _SHARE
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return _SHARE * free / total


def main() -> None:
    """Write the texts of the tasks in a file."""
    from vllm import LLM, SamplingParams

    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    llm = LLM(work["model"], dtype=work["dtype"], max_model_len=work["length"], skip_tokenizer_init=True,
              load_format="dummy", max_num_seqs=work["rows"], gpu_memory_utilization=work["share"],
              enable_prefix_caching=True, generation_config="vllm")

    def write(prompts: list, new: int) -> float:
        llm.reset_prefix_cache()  # prompts of earlier runs must not be cached
        began = time.perf_counter()
        params = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True,
                                detokenize=False)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        if any(len(output.outputs[0].token_ids) != new for output in outputs):
            raise SystemExit("a text has another number of tokens")
        return seconds

    for task in work["tasks"]:
        prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
        write(prompts, 8)  # compiles what it has not yet
        print(json.dumps({task["batch"]: write(prompts, task["new"])}), flush=True)


if __name__ == "__main__":
    main()
