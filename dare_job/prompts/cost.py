"""What a prompt set costs in tokens: what all prompts of a side share, and what each row adds to it."""

from collections.abc import Callable
from dataclasses import dataclass

from dare_job.prompts.sets import VARIABLES, HistoryItem, PromptSet

SIDES = tuple(VARIABLES)

# Films that differ from place to place, for two rows that have nothing but the prompt set in common.
_FILMS = (
    ("Toy Story (1995)", "Animation", 4.0), ("Heat (1995)", "Crime", 4.5), ("Casino (1995)", "Drama", 3.5),
    ("Seven (a.k.a. Se7en) (1995)", "Mystery", 5.0), ("Braveheart (1995)", "War", 4.0),
    ("Pulp Fiction (1994)", "Thriller", 5.0), ("Forrest Gump (1994)", "Romance", 4.0),
    ("Speed (1994)", "Action", 3.5), ("Blade Runner (1982)", "Sci-Fi", 4.5), ("Fargo (1996)", "Comedy", 4.0),
    ("The Shawshank Redemption (1994)", "Drama", 5.0), ("Jurassic Park (1993)", "Adventure", 3.5),
    ("Schindler's List (1993)", "War", 4.5), ("Dances with Wolves (1990)", "Western", 4.0),
    ("Aladdin (1992)", "Musical", 3.5), ("The Lion King (1994)", "Children", 4.0),
    ("True Lies (1994)", "Action", 3.0), ("The Fugitive (1993)", "Thriller", 4.0),
    ("Batman Forever (1995)", "Fantasy", 2.5), ("Apollo 13 (1995)", "Adventure", 4.0),
)
_PEOPLE = ({"age": "25-34", "gender": "female", "occupation": "nurse"},
           {"age": "45-54", "gender": "male", "occupation": "lawyer"})
_ITEMS = (("Heat (1995)", {"genre": "Crime", "year": "1995"}),
          ("The Lion King (1994)", {"genre": "Musical", "year": "1994"}))


@dataclass(frozen=True)
class Cost:
    """Tokens of the prompts of one side.

    Attributes
    ----------
    shared
        At the beginning of all prompts: system text, examples and instructions, read once per worker.
    row
        After that, in a typical prompt: a history of as many films as the set shows, at most 20, or a film.
    """

    shared: int
    row: int


def cost(prompt_set: PromptSet, side: str, count: Callable[[str], int]) -> Cost:
    """Tokens of a side ("user" or "item") by ``count``, the number of tokens of a text."""
    first, second = (_whole(prompt_set, side, number) for number in range(2))
    shared = next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
                  min(len(first), len(second)))
    whole, head = count(first), count(first[:shared])
    return Cost(head, whole - head)


def _whole(prompt_set: PromptSet, side: str, number: int) -> str:
    """System text, examples and the prompt of one of two rows, as a model without a chat template reads them.
    """
    if side == "user":
        films = _FILMS[::-1] if number else _FILMS
        history = [HistoryItem(title, rating, {"genre": genre}) for title, genre, rating in films]
        prompt = prompt_set.user(_PEOPLE[number], history)
    else:
        prompt = prompt_set.item(*_ITEMS[number])
    turns = [text for turn in prompt_set.example_turns(side) for text in turn]
    return "\n\n".join(filter(None, (prompt_set.system_text(side), *turns, prompt)))
