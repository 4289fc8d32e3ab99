"""The prompts on which ``dare-job check`` compares: built-in ones, or those of a file."""

import json
from pathlib import Path

from dare_job.errors import DataError

BUILT_IN = (
    "Describe this user's taste in films.",
    "A user watched Alien, Blade Runner and Brazil, and rated each of them five of five. What do they like?",
    "Hello",
    "Write what you know about the film The Third Man: its mood, its themes and who would like it. " * 3,
    "The user's history, oldest first: Heat; Ronin; Sneakers; The Conversation. Describe the preferences.",
    "1, 2, 3,",
    "Given the item's title, category and release year, say in a few words what kind of viewer it suits, and "
    "which mood it is for, without repeating the title.",
    "Summarise:",
)


def read_prompts(file: Path) -> list[tuple[str, str]]:
    """(prompt, where it stands) of a file: JSON lines with "prompt" where the first begins with a brace, else
    plain lines. Blank lines are left out.

    Raises DataError naming the file and the line: not to be read, no prompt, or one that is no text.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")  # JSON texts may hold other line ends
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"prompts file {file} cannot be read: {error}") from None
    found = [(line, f"prompts file {file}, line {i + 1}") for i, line in enumerate(lines) if line.strip()]
    if not found:
        raise DataError(f"prompts file {file} holds no prompt: every line is empty")
    if not found[0][0].lstrip().startswith("{"):
        return found
    return [(_prompt_of(line, place), place) for line, place in found]


def _prompt_of(line: str, place: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{place}: no JSON object with \"prompt\" ({error})") from None
    if not isinstance(prompt, str) or not prompt.strip():
        raise DataError(f"{place}: \"prompt\" is {json.dumps(prompt)[:80]}; it must be a non-empty text")
    return prompt
