"""Expected value and cost of writing one text again, as formulas that a person can read.

    value = (1 + traffic) * (1 - kept),    kept = (1 - new share) * (1 - distance) * 0.5 ** (age / 60 days)

``kept`` is how much of the old text still holds: it shrinks by what is new in the history, by how far the
entity's vector moved, and by half every 60 days. A row without a text keeps nothing. The cost is in prompt
tokens; a decoding step costs about as much as eight of them.

The formulas use arithmetic alone, so that they take numbers, numpy arrays and Spark columns alike. They know
nothing about tables, budgets or Spark.
"""

RECENCY = 0.9  # weight of an entry of the history, relative to the next newer one
HALF_LIFE_DAYS = 60.0  # after which half of a text no longer holds, with nothing new in the history
STEP_COST = 8  # cost of one decoding step of a row, in prompt tokens


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


def value(traffic, new, age_days, no_text, distance=0.0):
    """Expected value of writing a row: its traffic times the part of its text that no longer holds.

    Parameters
    ----------
    traffic
        Impressions or interactions of the entity, at least 0.
    new
        Share of the history that is new (``new_share``), 0 to 1.
    age_days
        Days since the text was written, at least 0.
    no_text
        1 if the row has no text, else 0.
    distance
        How far the entity's vector moved since: 0 (not at all) to 1.

    Returns
    -------
    value
        0 to 1 + traffic.
    """
    kept = (1.0 - new) * (1.0 - distance) * 0.5 ** (age_days / HALF_LIFE_DAYS)
    return (1.0 + traffic) * (1.0 - kept * (1.0 - no_text))


def cost(prompt_tokens, steps):
    """Cost of writing a row, in prompt tokens: those of its prompt and its expected decoding steps."""
    return prompt_tokens + STEP_COST * steps
