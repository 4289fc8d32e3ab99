"""Expected value and cost of writing one text again, as formulas that a person can read.

    value = sqrt(1 + traffic) * (1 - kept),    kept = 0.5 ** ((age + 1 day) / 100 days + 5 * distance)

``kept`` is how much of the text still holds on the day after the run: it shrinks by half whenever the
entity's vector moved by 1/5, and every 100 days. A row without a text keeps nothing. ``traffic`` is how often
the entity is shown, where that is known. What is new today does not count by itself: it would favour texts
that change every day, and are wrong again tomorrow (docs/explanation/refresh.md has the comparison). The cost
is in prompt tokens; a decoding step costs about as much as eight of them.

The formulas use arithmetic alone, so that they take numbers, numpy arrays and Spark columns alike. They know
nothing about tables, budgets or Spark.
"""

RECENCY = 0.9  # weight of an entry of the history, relative to the next newer one
HALF_LIFE_DAYS = 100.0  # after which half of a text no longer holds
HALVES_PER_DISTANCE = 5.0  # how often a text halves until the entity's vector has moved by 1
STEP_COST = 8  # cost of one decoding step of a row, in prompt tokens
TOKENS_PER_STEP = 4.0  # with drafts, roughly: if there is no previous run
CHARACTERS_PER_TOKEN = 4  # of a prompt, roughly


def new_share(new, shown):
    """Share of a history that is new, weighted by recency: (1 - r^new) / (1 - r^shown), r = RECENCY.

    Parameters
    ----------
    new
        Newest interactions that the text does not know: 0 to ``shown``.
    shown
        Interactions in the prompt, at least 1.
    """
    return (1.0 - RECENCY ** new) / (1.0 - RECENCY ** shown)


def aged(age_days):
    """Share of a text that its age makes void on the next day, 0 to 1."""
    return 1.0 - 0.5 ** ((age_days + 1.0) / HALF_LIFE_DAYS)


def value(traffic, age_days, no_text, distance=0.0):
    """Expected value of writing a row: the part of its text that no longer holds, weighted by its traffic.

    Parameters
    ----------
    traffic
        Impressions of the entity, at least 0; 0 if unknown. Without a text, else all its interactions.
    age_days
        Days since the text was written, at least 0.
    no_text
        1 if the row has no text, else 0.
    distance
        How far the entity's vector moved since: 0 (not at all) to 1.

    Returns
    -------
    value
        0 to sqrt(1 + traffic).
    """
    kept = (1.0 - aged(age_days)) * 0.5 ** (HALVES_PER_DISTANCE * distance)
    return (1.0 + traffic) ** 0.5 * (1.0 - kept * (1.0 - no_text))


def cost(prompt_tokens, steps):
    """Cost of writing a row, in prompt tokens: those of its prompt and its expected decoding steps."""
    return prompt_tokens + STEP_COST * steps
