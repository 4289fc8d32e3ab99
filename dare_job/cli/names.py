"""Old names of commands and options, which work until version 0.2, and the group of commands with them.

An old command line runs as the new one, after a line on standard error that names the new one.
"""

import shlex
import sys

from typer.core import TyperGroup

from dare_job.errors import ConfigError

ORDER = ("plan", "embed", "group", "route", "pools", "generate", "gate", "publish", "encode", "recommend")
REMOVED_IN = "0.2"

# old command: (new words, {old option: new option, or new words before the value})
_OLD: dict[str, tuple[list[str], dict[str, str]]] = {
    "sample": (["data", "sample"], {"--out": "--save"}),
    "prepare": (["data", "prepare"], {"--out": "--save"}),
    "train-drafter": (["drafter", "train"], {"--to": "--save", "--kept": "--top-k"}),
    "item-ids": (["recommender", "item-ids"], {"--to": "--save", "--texts": "--text"}),
    "train-recommender": (["recommender", "train"], {"--to": "--save", "--model": "--base"}),
    "evaluate-recommender": (["recommender", "evaluate"], {"--seen": "--with-interacted"}),
    "align": (["recommender", "align"], {
        "--to": "--save", "--target": "--recommender", "--lessons": "--teacher-paths",
        "--search-alpha": "--alpha=search"}),
    "replay": (["lab", "replay"], {}),
    "acceptance": (["lab", "acceptance"], {"--target": "--model", "--draws": "--samples"}),
    "check": (["check"], {"--prompts": "--prompt-file"}),
    "tune": (["tune"], {"--out": "--save"}),
    "curve": (["curve"], {"--work": "--save"}),
    "ctr": (["ctr"], {"--model": "--ctr-model"}),
    "recommend": (["run"], {"--model": "--recommender", "--drafter": "--recommend-drafter"}),
    **{stage: (["run"], {}) for stage in ORDER[:-1]},
}
_POOLS = (["pools", "export"], ["pools", "corrections"])  # commands of today


def renamed(words: list[str]) -> list[str]:
    """The command line with new names, from the words after ``dare-job``."""
    if not words or words[0] not in _OLD or words[:2] in _POOLS:
        return words
    command, options = _OLD[words[0]]
    rest = [_option(word, options) for word in words[1:]]
    if command != ["run"]:
        return [*command, *rest]
    bounded = any(word == "--from" or word.startswith("--from=") for word in rest)
    return ["run", *([] if bounded else ["--from", words[0]]), "--to", words[0], *rest]


def _option(word: str, options: dict[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{options[name]}{equals}{value}" if name in options else word


class Root(TyperGroup):
    """The top-level group: translates old names before it looks for the command."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        """Translate old names.

        Raises
        ------
        ConfigError
            An old name is not translated; the message names the new one.
        """
        if args[:1] == ["bench"]:
            raise ConfigError(f"write: python -m dare_job.{shlex.join(args)}")
        if any(word.partition("=")[0] == "--revision" for word in args):
            raise ConfigError("--revision: write the revision after the model's name: NAME@REVISION")
        new = renamed(args)
        if new != args:
            print(f"dare-job: this form of the command is deprecated and will be removed in version "
                  f"{REMOVED_IN}; write: dare-job {shlex.join(new)}", file=sys.stderr, flush=True)
        return super().parse_args(ctx, new)
