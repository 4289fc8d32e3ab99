"""MovieLens titles in their natural order, in Python and as a column of Spark."""

import pytest

from dare_job.data.titles import natural_order

TITLES = {
    "Matrix, The (1999)": "The Matrix (1999)",
    "Bug's Life, A (1998)": "A Bug's Life (1998)",
    "Misérables, Les (1995)": "Les Misérables (1995)",
    "Postino, Il (The Postman)": "Il Postino (The Postman)",
    "Boot, Das (Boat, The) (1981)": "Das Boot (The Boat) (1981)",
    "City of Lost Children, The (Cité des enfants perdus, La) (1995)":
        "The City of Lost Children (La Cité des enfants perdus) (1995)",
    "School of Flesh, The (École de la chair, L') (1998)": "The School of Flesh (L'École de la chair) (1998)",
    "Good, the Bad and the Ugly, The (Buono, il brutto, il cattivo, Il) (1966)":
        "The Good, the Bad and the Ugly (Il Buono, il brutto, il cattivo) (1966)",
    "Dream of Light (a.k.a. Quince Tree Sun, The) (Sol del membrillo, El) (1992)":
        "Dream of Light (a.k.a. The Quince Tree Sun) (El Sol del membrillo) (1992)",
    "Macht der Bilder: Leni Riefenstahl, Die": "Die Macht der Bilder: Leni Riefenstahl",
    "Crow, The: Wicked Prayer (2005)": "The Crow: Wicked Prayer (2005)",
    "Associate, The (L'Associe)(1982)": "The Associate (L'Associe)(1982)",
    "Blind Side, The  (2009)": "The Blind Side  (2009)",
    "10, The": "The 10"}
UNCHANGED = ["Toy Story (1995)", "Paris, Texas (1984)", "I, Robot (2004)", "One, Two, Three (1961)",
             "Honey, I Shrunk the Kids (1989)", "New York, I Love You (2009)",
             "Lust, Caution (Se, jie) (2007)", "The Good, The Bad", "A, B (The)", "", ", The"]


@pytest.mark.parametrize("title", TITLES)
def test_an_article_stands_before_its_noun(title):
    assert natural_order(title) == TITLES[title]
    assert natural_order(TITLES[title]) == TITLES[title]  # a second time changes nothing


@pytest.mark.parametrize("title", UNCHANGED)
def test_other_titles_stay_as_they_are(title):
    assert natural_order(title) == title
