"""Phrases of the grammar for each mood, theme, occupation, age and genre.

``{t}`` is a title, ``{m0}`` an adjective phrase and ``{m1}`` a noun phrase of its mood, ``{h0}`` and ``{h1}``
are phrases of its theme; ``{m}`` and ``{h}`` are the bare names of a mood and a theme.
"""

# Each mood as two adjective phrases (indices 0 and 1) and two noun phrases (2 and 3); all contain its name.
MOOD: dict[str, tuple[str, str, str, str]] = {
    "melancholic": ("melancholic and heavy with regret", "quietly melancholic",
                    "a melancholic mood that lingers", "melancholic piano music"),
    "eerie": ("eerie from the first scene", "rather eerie", "an eerie mood where nothing is safe",
              "eerie silence between the words"),
    "joyful": ("joyful and easy to love", "purely joyful", "a joyful mood with plenty of song",
               "joyful crowds in every scene"),
    "tense": ("tense until the very last minute", "almost unbearably tense",
              "a tense mood that never lets go", "tense cutting"),
    "dreamy": ("dreamy and hard to pin down", "softly dreamy", "a dreamy mood full of strange images",
               "dreamy camera work"),
    "tender": ("tender without being sweet", "deeply tender", "a tender mood and quiet talk",
               "tender close views"),
    "bleak": ("bleak and honest about it", "utterly bleak", "a bleak mood under cold light",
              "bleak grey skies"),
    "playful": ("playful and fond of jokes", "lightly playful", "a playful mood and quick wit",
                "playful turns of the plot"),
    "heroic": ("heroic on a grand scale", "proudly heroic", "a heroic mood and great deeds",
               "heroic last stands"),
    "serene": ("serene and never in a hurry", "perfectly serene", "a serene mood with long shots",
               "serene landscapes"),
    "savage": ("savage and loud", "openly savage", "a savage mood with little mercy", "savage fights"),
    "nostalgic": ("nostalgic for a time long gone", "frankly nostalgic", "a nostalgic mood in warm colours",
                  "nostalgic songs from the radio"),
}

THEME: dict[str, tuple[str, str, str, str]] = {
    "the sea": ("the sea and those who live by it", "the sea in all weathers", "the sea as a way out",
                "the sea at night"),
    "family": ("family ties that hold or break", "family secrets at the dinner table",
               "family across generations", "family life"),
    "revenge": ("revenge and what it costs", "revenge planned over many years", "revenge served cold",
                "revenge between old friends"),
    "war": ("war and the people it leaves behind", "war seen from the ranks", "war without glory",
            "war as children see it"),
    "first love": ("first love and its mistakes", "first love that nobody forgets",
                   "first love found too late", "first love by letter"),
    "ambition": ("ambition that goes too far", "ambition and the price of success",
                 "ambition in a small town", "ambition against the odds"),
    "nature": ("nature far from any town", "nature as friend and enemy", "nature through the seasons",
               "nature under threat"),
    "faith": ("faith tested by doubt", "faith in a small community", "faith lost and regained",
              "faith without words"),
    "machines": ("machines that outgrow their makers", "machines and the end of old trades",
                 "machines with a will", "machines on the march"),
    "crime": ("crime and the slow search for proof", "crime in the back streets", "crime as a way of life",
              "crime without a motive"),
    "memory": ("memory and the tricks it plays", "memory kept in old objects", "memory that fades",
               "memory shared by two strangers"),
    "exile": ("exile and the long way home", "exile among strangers", "exile by choice",
              "exile in a cold country"),
}

# Four voices; each occupation always uses the same one. Sentences 1 to 5 name the newest titles in order.
VOICES: tuple[tuple[str, ...], ...] = (
    ("The newest choice is {t}, {m0}, a story about {h0}.",
     "Just before came {t}, which offers {m1} and deals with {h1}.",
     "There is also {t}, {m0}, which turns on {h0}.",
     "In fourth place stands {t}, with {m1}.",
     "Then follows {t}, a film about {h1}."),
    ("Most recently {p} picked {t} for its story of {h1}; it is {m0}.",
     "{P} also enjoyed {t}, where {h0} meets {m1}.",
     "Another favourite, {t}, is {m0}.",
     "{P} returned to {h0} with {t}.",
     "Earlier still {p} chose {t}, {m0}."),
    ("{t} leads the list: {m1}, built around {h0}.",
     "{t} comes second, {m0}, and explores {h1}.",
     "Third is {t}, with {m1}.",
     "{t} adds {h0} to the picture.",
     "{t} closes the recent run and is {m0}."),
    ("Look first at {t}: the film is {m0} and speaks of {h1}.",
     "Next to it, {t} brings {m1}.",
     "A taste for {h0} shows in {t}.",
     "So does {t}, {m0}, with its view of {h1}.",
     "Somewhat older is {t}, known for {m1}."),
)

OLDEST: tuple[str, ...] = (
    "The record goes back to {t}, {m0}.",
    "It all began with {t} and {h1}.",
    "At the far end of the list waits {t}, {m0}.",
    "The oldest entry is {t}, about {h0}.",
)

# By age: how the profile opens and how it ends. {r} is the viewer ("This nurse"), {m} a mood, {h} a theme.
AGE: dict[str, tuple[str, str]] = {
    "under 18": ("{r} is still discovering cinema and likes {m} films.",
                 "Anything {m} with a strong lead about {h} will go down well."),
    "18-24": ("{r} follows new releases closely and looks for {m} stories.",
              "Young directors with {m} films about {h} would suit {o}."),
    "25-34": ("{r} watches in the evening and often wants something {m}.",
              "Suggest {m} films about {h} that start fast."),
    "35-44": ("{r} has little time and so chooses {m} films with care.",
              "One {m} film about {h} at the weekend is the safest offer."),
    "45-54": ("{r} knows the classics and keeps a place for {m} ones.",
              "Lesser known {m} classics about {h} are worth showing to {o}."),
    "55 and over": ("{r} has seen a great deal and values {m} work above all.",
                    "Restored {m} films about {h} deserve a place at the top."),
}

PRONOUNS: dict[str, tuple[str, str]] = {"female": ("she", "her"), "male": ("he", "him")}

# By genre: the audience sentence of an item's description.
AUDIENCE: dict[str, str] = {
    "action": "It suits viewers who want speed and clear stakes.",
    "animation": "It suits families and anyone who loves drawing.",
    "comedy": "It suits a relaxed evening among friends.",
    "documentary": "It suits viewers who like to learn how things are.",
    "drama": "It suits viewers who care for characters more than plot.",
    "fantasy": "It suits viewers who enjoy invented worlds.",
    "horror": "It suits viewers who like to be frightened.",
    "musical": "It suits viewers who leave the room singing.",
    "mystery": "It suits viewers who guess along.",
    "romance": "It suits couples and hopeless romantics.",
    "thriller": "It suits viewers who cannot stop before the end.",
    "western": "It suits viewers who like open land and few words.",
}

# By decade: the opening of an item's description, with the visual style of the time.
ITEM_OPENING: dict[str, str] = {
    "1950s": "Made in {c} in the {d}, {t} is {a} {g} film shot in black and white; it is {m0}.",
    "1960s": "{t}, {a} {g} film from {c}, belongs to the new wave of the {d} and is {m0}.",
    "1970s": "{t} is a grainy {g} film from {c}, made in the {d}, with {m1}.",
    "1980s": "With {m1}, {t} is {g} cinema of the {d} as {c} made it.",
    "1990s": "{t} is an independent {g} film that came out of {c} in the {d}; it is {m0}.",
    "2000s": "The {g} film {t} was a success of the {d} in {c} and has {m1}.",
    "2010s": "{t} is a polished {g} film of the {d}, produced in {c}, and {m0}.",
    "2020s": "A recent {g} film from {c}, {t} shows the {d} at their best: {m1}.",
}
ITEM_THEME: tuple[str, ...] = (
    "At its heart lies {h0}.",
    "The plot is concerned with {h1}.",
    "Its subject is {h0}, and behind it {h1}.",
)
ITEM_CLOSING = "Close to it are other {m} films about {h}."

# Titles from outside the synthetic data set: the newest five, the oldest, the ending; the description.
FOREIGN_VOICE: tuple[str, ...] = (
    "The newest choice is {t}.",
    "Just before came {t}.",
    "There is also {t}.",
    "In fourth place stands {t}.",
    "Then follows {t}.",
)
FOREIGN_OLDEST = "The record goes back to {t}."
FOREIGN_USER_ENDING = "Mood and theme of these titles are not known to this small writer."
FOREIGN_GENRE = "{t} is filed under {g}."
FOREIGN_PLAIN = "{t} is filed under no genre."
FOREIGN_ITEM_ENDING = "Its mood and theme are not known to this small writer."
