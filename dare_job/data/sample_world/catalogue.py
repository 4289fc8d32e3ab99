"""Items of the synthetic data set: distinct titles, attributes, quality, popularity, release day.

A title's adjective determines the film's mood, and its noun the theme. No attribute contains these two facts,
so only text generated from the title can add them as features.
"""

from dataclasses import dataclass

import numpy as np

ADJECTIVES: dict[str, tuple[str, ...]] = {
    "melancholic": ("Silent", "Faded", "Lonely", "Hollow", "Weeping", "Pale", "Grey"),
    "eerie": ("Haunted", "Crooked", "Whispering", "Buried", "Spectral", "Nameless", "Cursed"),
    "joyful": ("Golden", "Sunny", "Merry", "Laughing", "Bright", "Dancing", "Honey"),
    "tense": ("Broken", "Hidden", "Burning", "Sudden", "Fatal", "Narrow", "Stolen"),
    "dreamy": ("Velvet", "Floating", "Distant", "Sleeping", "Misty", "Paper", "Lunar"),
    "tender": ("Gentle", "Secret", "Crimson", "Beloved", "Blushing", "Rose", "Faithful"),
    "bleak": ("Frozen", "Barren", "Iron", "Bitter", "Ashen", "Ruined", "Black"),
    "playful": ("Clumsy", "Tiny", "Electric", "Curious", "Giddy", "Borrowed", "Paisley"),
    "heroic": ("Brave", "Mighty", "Final", "Royal", "Shining", "Steel", "Fearless"),
    "serene": ("Quiet", "Still", "Green", "Winter", "Slow", "Drifting", "Patient"),
    "savage": ("Wild", "Feral", "Raging", "Bloody", "Thunder", "Ragged", "Scarlet"),
    "nostalgic": ("Old", "Vanished", "Forgotten", "Summer", "Amber", "Dusty", "Lost"),
}

NOUNS: dict[str, tuple[str, ...]] = {
    "the sea": ("Harbor", "Tide", "Anchor", "Lighthouse", "Island", "Sailor", "Lagoon", "Reef"),
    "family": ("House", "Mother", "Brothers", "Kitchen", "Cradle", "Orchard", "Daughter", "Inheritance"),
    "revenge": ("Dagger", "Vendetta", "Duel", "Ransom", "Verdict", "Oath", "Scar", "Reckoning"),
    "war": ("Trench", "Soldier", "Banner", "Siege", "Cannon", "Regiment", "Battle", "Armistice"),
    "first love": ("Kiss", "Letters", "Garden", "Waltz", "Valentine", "Balcony", "Bouquet", "Serenade"),
    "ambition": ("Ladder", "Crown", "Tower", "Empire", "Fortune", "Market", "Throne", "Bargain"),
    "nature": ("Forest", "River", "Meadow", "Mountain", "Wolf", "Valley", "Falcon", "Thicket"),
    "faith": ("Chapel", "Pilgrim", "Prayer", "Saint", "Psalm", "Bell", "Monastery", "Miracle"),
    "machines": ("Engine", "Clock", "Robot", "Signal", "Circuit", "Factory", "Satellite", "Turbine"),
    "crime": ("Alibi", "Witness", "Heist", "Alley", "Detective", "Vault", "Motive", "Forgery"),
    "memory": ("Mirror", "Diary", "Photograph", "Shadow", "Echo", "Attic", "Portrait", "Archive"),
    "exile": ("Road", "Caravan", "Station", "Passport", "Journey", "Voyage", "Compass", "Border"),
}

PLACES: tuple[str, ...] = (
    "Lisbon", "Kyoto", "Cairo", "Prague", "Havana", "Bergen", "Naples", "Tangier", "Odessa", "Quito",
    "Dublin", "Hanoi", "Vienna", "Santiago", "Riga", "Marseille", "Oslo", "Lagos", "Boston", "Perth",
)

MOOD_OF: dict[str, str] = {word: mood for mood, words in ADJECTIVES.items() for word in words}
THEME_OF: dict[str, str] = {word: theme for theme, words in NOUNS.items() for word in words}
MOODS: tuple[str, ...] = tuple(ADJECTIVES)
THEMES: tuple[str, ...] = tuple(NOUNS)
GENRES: tuple[str, ...] = (
    "action", "animation", "comedy", "documentary", "drama", "fantasy", "horror", "musical", "mystery",
    "romance", "thriller", "western",
)

DECADES: tuple[str, ...] = ("1950s", "1960s", "1970s", "1980s", "1990s", "2000s", "2010s", "2020s")

COUNTRIES: tuple[str, ...] = (
    "Argentina", "Canada", "Denmark", "France", "India", "Italy", "Japan", "Mexico", "Nigeria", "Poland",
)

GENDERS: tuple[str, ...] = ("female", "male")
AGES: tuple[str, ...] = ("under 18", "18-24", "25-34", "35-44", "45-54", "55 and over")

OCCUPATIONS: tuple[str, ...] = (
    "artist", "clerk", "doctor", "driver", "engineer", "farmer", "gardener", "lawyer", "librarian",
    "manager", "nurse", "programmer", "scientist", "student", "teacher", "writer",
)


def title_facts(title: str) -> tuple[str, str]:
    """The (mood, theme) of a title such as ``"Silent Harbor"`` or ``"Silent Harbor in Oslo"``.

    Raises
    ------
    KeyError
        The title is not from the synthetic data set.
    ValueError
        The title has fewer than two words.
    """
    adjective, noun = title.split()[:2]
    return MOOD_OF[adjective], THEME_OF[noun]


_SHARE_WITH_PLACE = 0.25
_ZIPF_EXPONENT = 0.8
_SHARE_OBSCURE = 0.06
_SHARE_RELEASED_LATE = 0.25  # the rest is released on the first day
MAX_ITEMS = len(MOOD_OF) * len(THEME_OF) * (1 + len(PLACES)) // 2


@dataclass(frozen=True)
class Catalogue:
    """Arrays with one entry per item (I items).

    ``mood`` and ``theme`` (indices into MOODS, THEMES) follow from the title and are in no attribute.
    ``release_day`` counts days from the first day of the world; a few items are released on the last day.
    """

    titles: tuple[str, ...]
    attributes: tuple[dict[str, str], ...]
    genre: np.ndarray  # (I,) int, index into GENRES
    mood: np.ndarray  # (I,) int
    theme: np.ndarray  # (I,) int
    quality: np.ndarray  # (I,) float, in rating points around 0
    popularity: np.ndarray  # (I,) float, sums to 1, Zipf-like
    release_day: np.ndarray  # (I,) int


def make_titles(count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """``count`` distinct titles of adjective and noun; every fourth also has a place."""
    adjectives, nouns = tuple(MOOD_OF), tuple(THEME_OF)
    plain_share = min(1.0 - _SHARE_WITH_PLACE, 0.5 * len(adjectives) * len(nouns) / count)
    titles: dict[str, None] = {}
    while len(titles) < count:
        title = f"{adjectives[rng.integers(len(adjectives))]} {nouns[rng.integers(len(nouns))]}"
        if rng.random() >= plain_share:
            title += f" in {PLACES[rng.integers(len(PLACES))]}"
        titles[title] = None
    return tuple(titles)


def make_catalogue(count: int, days: int, rng: np.random.Generator) -> Catalogue:
    """``count`` items of a world that lasts ``days`` days."""
    titles = make_titles(count, rng)
    genre = rng.integers(len(GENRES), size=count)
    popularity = 1.0 / (1.0 + rng.permutation(count)) ** _ZIPF_EXPONENT
    popularity[rng.random(count) < _SHARE_OBSCURE] *= 0.02
    release_day = np.where(rng.random(count) < _SHARE_RELEASED_LATE, rng.integers(1, days, size=count), 0)
    release_day[: max(1, count // 50)] = days - 1
    attributes = tuple({"genre": GENRES[genre[i]], "decade": DECADES[rng.integers(len(DECADES))],
                        "country": COUNTRIES[rng.integers(len(COUNTRIES))]} for i in range(count))
    words = [title.split()[:2] for title in titles]
    return Catalogue(
        titles=titles, attributes=attributes, genre=genre,
        mood=np.array([MOODS.index(MOOD_OF[adjective]) for adjective, _ in words]),
        theme=np.array([THEMES.index(THEME_OF[noun]) for _, noun in words]),
        quality=rng.normal(0.0, 0.35, size=count),
        popularity=popularity / popularity.sum(), release_day=release_day)
