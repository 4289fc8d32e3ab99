"""``dare-job lab refresh``: replays nights of a simulated world under policies of what to write again."""

import logging
import time
from dataclasses import replace

import numpy as np

from dare_job import prompts
from dare_job.data.sample_world.daily import simulate_daily
from dare_job.evaluate.refresh import learn, options, published_nights, real
from dare_job.evaluate.refresh.nights import (
    NONE,
    Nights,
    distances,
    encoded,
    full_refresh,
    item_facts,
    item_vectors,
    kinds,
    moves,
    token_counter,
)
from dare_job.evaluate.refresh.options import Options
from dare_job.evaluate.refresh.policies import Budget, Policy, Replayed, hindsight, replay, simple, valued
from dare_job.evaluate.refresh.scores import Days, Scorer, bootstrap, interval
from dare_job.refresh import learned
from dare_job.storage.paths import atomic_writer

_LOG = logging.getLogger("dare_job")
FULL, FROZEN, CHANGED = "full refresh", "frozen texts", "all that changed"
OURS = ("value", "value, LightGCN vectors", "value, learned")
LEARNED_SHARE = 0.3  # of the changed rows: the random policy from whose nights coefficients are learned


def run(options_: Options) -> dict:
    """Replay and compare; returns the JSON object that the command prints last.

    Returns
    -------
    rows
        By policy and budget: rows and tokens per night, distance of the served texts, AUC by model.
    counts
        By CTR model: whether full refresh beats frozen texts with an interval above 0.
    learned
        Coefficients, and how well they rank on nights that they were not learned from.
    real
        The same ranking on real data, if ``input`` names some.
    nights
        With ``nights``, in place of all others: what was learned from published dates.

    Raises
    ------
    ConfigError, DataError, ModelError
        An option, the real data or the encoder cannot be used.
    """
    chosen = options.quick(options_) if options_.quick else options_
    began = time.perf_counter()
    if chosen.nights:
        coefficients, report = published_nights.run(chosen.nights, chosen.encoder, chosen.seed)
        _save(chosen, coefficients, report["rankings"])
        return {"nights": report, "seconds": round(time.perf_counter() - began, 1)}
    prompt_set = prompts.load(prompts.SAMPLE)
    days = Days(chosen.history_days, chosen.history_days + chosen.train_days,
                chosen.history_days + chosen.train_days + chosen.replay_days)
    world = simulate_daily(chosen.users, chosen.items, days.end, chosen.seed)
    known = world.shown.click & (world.shown.day < days.train)
    by_clicks = item_vectors(world.shown.user[known], world.shown.item[known], chosen.users, chosen.items,
                             chosen.seed)
    nights = full_refresh(world, prompt_set, kinds(item_facts(world)), token_counter())
    vectors = encoded(nights.texts, chosen.encoder)
    _LOG.info("%d users, %d items shown, %d distinct texts, %.0f s", chosen.users, len(world.shown.user),
              len(vectors), time.perf_counter() - began)
    scorer = Scorer(world, nights, vectors, days, chosen.clicks)
    scorer.train(list(chosen.models), chosen.seeds, chosen.training)
    coefficients, report = _learn(nights, vectors, scorer, days, prompt_set.max_history, chosen.seed)
    other = replace(nights, moved=moves(world, by_clicks, prompt_set.max_history))
    policies = [*simple(nights), *valued(nights, prompt_set.max_history, coefficients, other),
                hindsight(nights, vectors)]
    result = {"world": {"users": chosen.users, "items": chosen.items, "shown": len(world.shown.user),
                        "clicks": round(float(world.shown.click.mean()), 4), "texts": len(vectors),
                        "days": [days.train, days.replay, days.end], "seed": chosen.seed},
              "unit": chosen.unit, "seeds": chosen.seeds, "samples": chosen.samples,
              **_compare(nights, vectors, scorer, days, policies, chosen), "learned": report}
    _save(chosen, coefficients, report["rankings"])
    if chosen.input:
        result["real"] = real.run(chosen.input, chosen.encoder, coefficients, chosen.seed)
    return result | {"seconds": round(time.perf_counter() - began, 1)}


def _save(chosen: Options, coefficients: learned.Coefficients, rankings: dict) -> None:
    if chosen.save:
        with atomic_writer(chosen.save, f".{chosen.save.name}.partial") as file:
            file.write(learned.document(coefficients, rankings).encode())


def _learn(nights: Nights, vectors: np.ndarray, scorer: Scorer, days: Days, max_history: int,
           seed: int) -> tuple[learned.Coefficients, dict]:
    """Learn from the days of training, and rank on those that are replayed, both under a random policy."""
    random = next(policy for policy in simple(nights) if policy.name == "random")
    replayed = replay(nights, days.train, random, Budget("rows", LEARNED_SHARE), seed)
    before = np.vstack([replayed.written[:1], replayed.written[:-1]])  # as if a night had written nothing
    fresh, stale = (scorer.scores(text) for text in (scorer.of_fresh(), scorer.of(before)))
    moved = np.mean([np.abs(fresh[model] - stale[model]).mean(0) for model in fresh], axis=0)  # (N,)
    place = (scorer.day - 1) * nights.text.shape[1] + scorer.user
    shown = np.bincount(place, minlength=nights.text.size)
    sums = np.bincount(place, moved, minlength=nights.text.size)
    score_moved = np.where(shown > 0, sums / np.maximum(shown, 1), np.nan).reshape(nights.text.shape)
    rows = learn.movements(nights, vectors, replayed, days.train, max_history, score_moved)
    coefficients = learn.coefficients(rows.part(rows.night < days.replay))
    held_out = rows.part(rows.night >= days.replay)
    return coefficients, {"coefficients": vars(coefficients), "rows": int((rows.night < days.replay).sum()),
                          "held_out_rows": len(held_out.night),
                          "rankings": learn.rankings(held_out, coefficients)}


def _compare(nights: Nights, vectors: np.ndarray, scorer: Scorer, days: Days, policies: list[Policy],
             chosen: Options) -> dict:
    """Replay each policy, and compare AUC on the replayed days, all on the same samples of users."""
    everything = Policy(CHANGED, None)
    served = {(FULL, None): replay(nights, days.end, None, None, 0),
              (CHANGED, None): replay(nights, days.replay, everything, None, 0),
              (FROZEN, None): replay(nights, days.replay, None, None, 0)}
    for share in chosen.shares:
        served |= {(policy.name, share): replay(nights, days.replay, policy, Budget(chosen.unit, share),
                                                chosen.seed) for policy in policies}
    test = scorer.day >= days.replay
    by_model: dict[str, dict] = {}
    for key, replayed in served.items():
        for model, scores in scorer.scores(scorer.of(replayed.written)).items():
            by_model.setdefault(model, {})[key] = scores[:, test]
    measured = {model: bootstrap(scorer.chance[test], scorer.user[test], sets, chosen.samples,
                                     chosen.seed) for model, sets in by_model.items()}
    gaps = {model: interval(auc[FULL, None] - auc[FROZEN, None]) for model, auc in measured.items()}
    rows = [{"policy": name, "share": share, **_cost(nights, vectors, scorer, replayed, days),
             "models": {model: _against(auc, (name, share)) for model, auc in measured.items()}}
            for (name, share), replayed in served.items()]
    return {"label_rows": int(test.sum()), "rows": rows,
            "counts": {model: {"gap": gap[0], "gap_ci95": list(gap[1:]), "above_0": gap[1] > 0}
                       for model, gap in gaps.items()}}


def _against(auc: dict[tuple, np.ndarray], key: tuple) -> dict:
    """AUC of a policy, over frozen texts, below full refresh, and as a share of the gap; and ours over it."""
    own, full, frozen = auc[key], auc[FULL, None], auc[FROZEN, None]
    gap = full - frozen
    ours = {name: _finite(auc[name, key[1]] - own)
            for name in OURS if key[1] is not None and (name, key[1]) in auc and name != key[0]}
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (own - frozen) / gap
    return {"auc": _finite(own), "over_frozen": _finite(own - frozen), "below_full": _finite(full - own),
            "share_of_gap": _finite(share), "ours_over": ours}


def _finite(values: np.ndarray) -> list[float | None]:
    """Value, low and high; None for what is not finite, which JSON cannot hold."""
    return [round(number, 6) if np.isfinite(number) else None for number in interval(values)]


def _cost(nights: Nights, vectors: np.ndarray, scorer: Scorer, replayed: Replayed, days: Days) -> dict:
    """Per replayed night: rows and tokens; and how far the texts served are from those of a full refresh.

    ``distance`` is the mean of 1 - cosine over users with a text, ``distance_shown`` over items shown.
    """
    nights_replayed = slice(days.replay, days.end)
    written, fresh = replayed.written[nights_replayed], nights.text[nights_replayed]
    has_text = written != NONE
    night, user = np.nonzero(has_text)
    old = nights.text[written[night, user], user]
    far = distances(vectors, old, fresh[night, user])
    shown, now = scorer.of(replayed.written), scorer.of_fresh()
    rows = (scorer.day >= days.replay) & (shown != NONE)
    return {"rows_per_night": float(replayed.rows[nights_replayed].mean()),
            "tokens_per_night": float(replayed.tokens[nights_replayed].mean()),
            "distance": float(far.mean()), "distance_shown": float(distances(
                vectors, shown[rows], now[rows]).mean())}
