"""Expected value and cost of writing one text again, as formulas that a person can read.

    value = sqrt(1 + traffic) * void,    void = distance / (1 + 2 * new) + aged / 100

``distance`` is how far the entity's vector moved since the text was written, ``new`` the share of its history
that is new. A mean moves with many new interactions also where no interest changed, so a distance counts for
less where much is new, and what is new counts for nothing by itself. ``aged`` (half after 20 days) decides
between texts of equal distance. A row without a text is void. ``traffic`` is how often the entity is shown,
where that is known. docs/explanation/refresh.md compares other formulas. The cost is in prompt tokens; a
decoding step costs about as much as eight of them.

The formulas use arithmetic alone, so that they take numbers, numpy arrays and Spark columns alike. They know
nothing about tables, budgets or Spark.
"""

RECENCY = 0.9  # weight of an entry of the history, relative to the next newer one
HALF_LIFE_DAYS = 20.0  # after which half of a text counts as void by its age
NOISE_OF_NEW = 2.0  # how much less a distance counts where the whole history is new
AGE_PART = 100.0  # what age counts: so much less than a distance of 1
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


def value(traffic, new, age_days, no_text, distance=0.0):
    """Expected value of writing a row: how void its text is, weighted by its traffic.

    Parameters
    ----------
    traffic
        Impressions of the entity, at least 0; 0 if unknown. Without a text, else all its interactions.
    new
        Share of the history that the text does not know (``new_share``), 0 to 1.
    age_days
        Days since the text was written, at least 0.
    no_text
        1 if the row has no text, else 0.
    distance
        How far the entity's vector moved since: 0 (not at all) to 1.

    Returns
    -------
    value
        0 to 1.01 sqrt(1 + traffic).
    """
    void = distance / (1.0 + NOISE_OF_NEW * new) + aged(age_days) / AGE_PART
    return (1.0 + traffic) ** 0.5 * (void * (1.0 - no_text) + no_text)


def cost(prompt_tokens, steps):
    """Cost of writing a row, in prompt tokens: those of its prompt and its expected decoding steps."""
    return prompt_tokens + STEP_COST * steps
