"""The report's part about rows that were not written: reasons, ages, value, and what more time would buy."""

from base64 import b64encode

from dare_job.publish.report import plot
from dare_job.publish.report.nights import Night
from dare_job.refresh import words


def of(night: Night) -> dict | None:
    """What the template ``carried.html`` shows; None if every changed row has its own new text.

    Returns
    -------
    rows
        ``entity, stale, chosen, copied, value_left`` (a share) and the number of rows by ``reasons``.
    ages
        Changed rows by the age of their text: ``age, written, carried``.
    more
        Share of the value left that another hour of each worker would buy; None if that is not known.
    image
        The curve of value by cost as a data URI; None without a budget.
    """
    records = {entity: manifest["refresh"] for entity, manifest in night.manifests.items()
               if manifest.get("refresh")}
    if not any(record.get("carried") or record.get("copied") for record in records.values()):
        return None
    curve = next((record["curve"] for record in records.values() if record.get("curve")), None)
    return {"rows": [_row(entity, record) for entity, record in records.items()], "ages": _ages(records),
            "stopped": night.first("refresh").get("stopped"),
            "more": night.first("refresh").get("one_more_hour"), "image": curve and _image(curve)}


def _row(entity: str, record: dict) -> dict:
    total = record.get("value", 0) + record.get("value_left", 0)
    chosen, copied = record.get("chosen", 0), record.get("copied", 0)
    return {"entity": entity, "stale": chosen + copied + sum(record["carried"].values()),
            "chosen": chosen, "copied": copied, "reasons": record["carried"], "oldest": record.get("oldest"),
            "unseen": record.get("unseen_interactions"),
            "value_left": record.get("value_left", 0) / total if total else None}


def _ages(records: dict[str, dict]) -> list[dict]:
    return [{"age": age, "written": written, "carried": left}
            for age, (written, left) in words.ages([*records.values()]).items()]


def _image(curve: dict) -> str:
    cost, value = (max(curve[name][-1], 1e-9) for name in ("cost", "value"))
    points = [(x / cost, y / value) for x, y in zip(curve["cost"], curve["value"], strict=True)]
    end = plot.Dot("this run", curve["chosen_cost"] / cost, curve["chosen_value"] / value)
    panel = plot.Panel("Share of the value, by the share of the cost", [plot.Line("", "#888", "", points)],
                       [end], x=plot.from_zero, y=plot.from_zero)
    text = plot.document("Share of the expected value that a share of the cost buys", [panel])
    return f"data:image/svg+xml;base64,{b64encode(text.encode()).decode()}"
