"""Every command of the README and of docs/get-started runs, in order, as a newcomer would type it.

`make test` is what runs this file. The real MovieLens and profile files are stood in for by small ones of the
same shape, and benchmarks run on fewer rows.
"""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs/get-started/first-run.md", ROOT / "docs/get-started/your-data.md"]
SMALLER = {"dare-job tune": "--held-out 5"}
BY_HAND = {"make test": "it runs this test",
           "make airflow": "it runs until it is stopped: tests/dags/test_make_airflow.py"}


def commands() -> list[str]:
    """Lines of the pages' shell blocks, each once, continued lines joined, comments dropped."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ").splitlines()
    return list(dict.fromkeys(" ".join(line.partition("#")[0].split()) for line in lines
                              if line.partition("#")[0].strip()))


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """A folder with conf/ and an output of its own, and the environment with stand-ins for real data."""
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "conf").symlink_to(ROOT / "conf")
    data = folder / "data"
    (data / "knowledge").mkdir(parents=True)
    _movielens(data / "ml-latest-small.zip")
    _profiles(data / "knowledge" / "ml1m_users_llama3chatqa.jsonl.gz")
    _tokenizer(data / "tokenizer")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return folder, {**ours, "DARE_DATA": str(data), "PATH": path}


@pytest.mark.spark
@pytest.mark.parametrize("command", commands())
def test_readme_command(command, newcomer):
    folder, environment = newcomer
    if command in BY_HAND:
        return
    cwd = folder
    if command.startswith("make"):
        command, cwd = f"{command} OUT={shlex.quote(str(folder / 'out'))}", ROOT
    for module, options in SMALLER.items():
        if module in command:
            command = f"{command} {options}"
    done = subprocess.run(["sh", "-c", command], cwd=cwd, env=environment, text=True, capture_output=True,
                          timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    if any(word in command for word in (" run ", " ctr ", "check", "bench", "replay", "tune", "make demo")):
        assert isinstance(json.loads(done.stdout.strip().splitlines()[-1]), dict)


def _movielens(path: Path) -> None:
    movies = ["movieId,title,genres"] + [f'{i},"Story, The {i} (1995)",Drama|Comedy' for i in range(1, 9)]
    ratings = ["userId,movieId,rating,timestamp"]
    ratings += [f"{u},{1 + (u + i) % 8},{3 + (u + i) % 3},{900_000_000 + 100 * i}"
                for u in range(1, 7) for i in range(6)]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ml-latest-small/movies.csv", "\n".join(movies) + "\n")
        archive.writestr("ml-latest-small/ratings.csv", "\n".join(ratings) + "\n")


def _profiles(path: Path) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for user in range(40):
            text = f"This user likes films of kind {user % 3} and enjoys long stories about the sea."
            file.write(json.dumps({"user": user, "plain": text}) + "\n")


def _tokenizer(folder: Path) -> None:
    """Byte-level vocabulary and merges under the names of the GPT-2 files."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["This user likes long stories about the sea."] * 9, vocab_size=300)
    vocabulary, merges = tokenizer.save_model(str(folder))
    Path(vocabulary).rename(folder / "gpt2_encoder.json")
    Path(merges).rename(folder / "gpt2_vocab.bpe")
