"""Every command of the README and of docs/get-started runs, in order, as a newcomer would type it.

MovieLens is the real archive if DARE_DATA has it, else a small one of the same shape; profiles are made up.
`make demo` runs as it is; after it one process runs the commands of dare-job, so that Java starts once.
"""

import gzip
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer

from dare_job import cli
from dare_job.bench.cli import app as bench
from dare_job.config.settings import load

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs/get-started/first-run.md", ROOT / "docs/get-started/your-data.md"]
BY_HAND = ["make test"]  # it runs this test
IN_TURN = """
import contextlib, io, json, os, shlex, sys
from dare_job import cli
for command in json.loads(sys.argv[1]):
    sys.argv, out, err = shlex.split(os.path.expandvars(command)), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code or 0, out.getvalue(), err.getvalue()]), flush=True)
"""


def commands() -> list[str]:
    """Lines of the pages' shell blocks, each once, continued lines joined, comments dropped."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ").splitlines()
    return list(dict.fromkeys(" ".join(line.partition("#")[0].split()) for line in lines
                              if line.partition("#")[0].strip()))


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """A folder with conf/, and in data/ stand-ins for real data."""
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "conf").symlink_to(ROOT / "conf")
    data = folder / "data"
    data.mkdir()
    real = Path(os.environ.get("DARE_DATA", "")) / "ml-latest-small.zip"
    if real.is_file():
        (data / real.name).symlink_to(real)
    else:
        _movielens(data / real.name)
    _profiles(data / "profiles.jsonl.gz")
    _tokenizer(data / "tokenizer")
    (folder / "llm.yaml").write_text("model: {name: embedded}\n")
    return folder


@pytest.fixture(scope="module")
def demo(newcomer):
    """Exit code, standard output and standard error of `make demo`."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "demo", f"OUT={newcomer / 'out'}"], cwd=ROOT, env=ours, text=True,
                          capture_output=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def said(newcomer, demo):
    """By command of dare-job the same of each, in the pages' order."""
    asked = [command for command in commands() if command.startswith("dare-job ")]
    done = subprocess.run([sys.executable, "-c", IN_TURN, json.dumps(asked)], cwd=newcomer, text=True,
                          capture_output=True, timeout=600,
                          env={**os.environ, "DARE_DATA": str(newcomer / "data"), "MODEL": "embedded",
                               "TEXTS": str(newcomer / "data/profiles.jsonl.gz"),
                               "TOKENIZER": str(newcomer / "data/tokenizer")})
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(asked, map(json.loads, done.stdout.splitlines()), strict=True))


def test_all_commands_are_of_dare_job_but_the_first_two():
    assert commands()[:2] == ["make demo", *BY_HAND]
    assert all(command.startswith("dare-job ") for command in commands()[2:])


def inline_commands() -> list[str]:
    """Commands in backticks within the sentences of the pages."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return sorted({" ".join(words.split()) for words in re.findall(r"`([^`]+)`", text)
                   if re.match(r"(dare-job|python -m dare_job\.bench|make) [a-z]", words)})


@pytest.mark.parametrize("command", inline_commands())
def test_an_inline_command_exists_with_its_options(command):
    words = command.removeprefix("python -m ").split()
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        return
    found = typer.main.get_command(cli.app if words[0] == "dare-job" else bench)
    names = words[1:]
    while hasattr(found, "get_command"):
        found = found.get_command(None, names.pop(0))
        assert found is not None, command
    options = {option for parameter in found.params for option in parameter.opts + parameter.secondary_opts}
    assert {word.partition("=")[0] for word in names if word.startswith("--")} <= options


def test_the_settings_of_the_pages_are_settings(tmp_path):
    blocks = [block for page in PAGES
              for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
    assert blocks
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block)
        load(file)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("command", [command for command in commands() if command not in BY_HAND])
def test_readme_command(command, request):
    made = command == "make demo"
    code, out, err = request.getfixturevalue("demo") if made else request.getfixturevalue("said")[command]
    assert code == 0, f"{command}\n{out[-2000:]}\n{err[-4000:]}"
    if made or any(f"dare-job {word} " in command for word in ("run", "check", "tune")):
        assert isinstance(json.loads(out.strip().splitlines()[-1]), dict)


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
        for user in range(1040):  # tune replays 1,000 of them
            text = f"This user likes films of kind {user % 3} and enjoys long stories about the sea."
            file.write(json.dumps({"entity_id": f"u{user}", "knowledge": text}) + "\n")


def _tokenizer(folder: Path) -> None:
    """Byte-level vocabulary and merges under the names of the GPT-2 files."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["This user likes long stories about the sea."] * 9, vocab_size=300)
    vocabulary, merges = tokenizer.save_model(str(folder))
    Path(vocabulary).rename(folder / "gpt2_encoder.json")
    Path(merges).rename(folder / "gpt2_vocab.bpe")
