"""Quality curves made by hand, of the model and prompts of a job."""

from pathlib import Path

from dare_job.evaluate.curve import table
from dare_job.evaluate.curve.table import Distance, Entry, Loss, QualityCurve
from dare_job.job import Job


def entry(k: int, p: float, speed: tuple[float, float, float], cosine=(1.0, 0.5), loss=None) -> Entry:
    """A setting with (mean, bound) of cosine, and of each CTR model's loss."""
    auc = {model: Loss(by_seed=[mean, mean], mean=mean, bound=bound)
           for model, (mean, bound) in (loss or {}).items()}
    return Entry(k=k, p=p, tokens_per_s=1000.0 * speed[0], accepted_per_step=3.0, relaxed_share=0.1,
                 speed=speed, cosine=Distance(mean=cosine[0], bound=cosine[1]),
                 rouge_l=Distance(mean=0.9, bound=0.8), length=Distance(mean=0.1, bound=0.2), auc=auc)


def curve(job: Job, *entries: Entry, **more) -> QualityCurve:
    strict = Entry(k=None, p=None, tokens_per_s=1000.0, accepted_per_step=2.0, relaxed_share=0.0,
                   speed=(1.0, 1.0, 1.0))
    return QualityCurve(**{
        "schema_version": table.VERSION, "date": "2026-01-02", "made": "2026-01-02T00:00:00+00:00",
        "identity": table.identity(job), "settings": {}, "level": 0.95, "rows": 300, "timed": 300, "turns": 3,
        "seeds": 10, "entities": {"user": 200, "item": 100}, "encoder": "embedded", "machine": "here",
        "command": "dare-job curve", "entries": [strict, *entries], **more})


def write(folder: Path, made: QualityCurve) -> Path:
    path = folder / "curve.json"
    path.write_text(made.model_dump_json(), encoding="utf-8")
    return path
