"""Runs the checks over the generated rows of an entity type, in one pass of batches.

Lengths are compared with the previous texts only if the same model, tokenizer, prompts and token limits
generated both.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.config.gates import GateSettings
from dare_job.decode.engine.loops import number_tokens
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.publish.gate import checks, content, lengths
from dare_job.publish.gate.checks import Texts
from dare_job.publish.gate.content import SameTexts
from dare_job.publish.gate.failures import Failures
from dare_job.publish.gate.findings import (
    OF_ERRORS,
    OF_LENGTHS,
    FailingRows,
    Finding,
)
from dare_job.publish.gate.lengths import Sample
from dare_job.publish.gate.shared_spans import SharedSpans
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published, stage_inputs

MIN_FAILING_ROWS = 3  # with fewer a check passes: in a low-volume run one row is a large share
MIN_LENGTH_PAIRS = 50  # fewer pairs of previous and new texts are not compared
_BATCH = 16_384  # rows
_FILES = 64  # opened at a time
_PROMPTS = 100  # by which the script is known


class Scan:
    """Counts of one entity type: ``add`` batches, then read each ``finding``.

    Parameters
    ----------
    numbers : bool (V,)
        The model's tokens that are numbers.
    script, form
        As in ``checks.failing_texts``.
    """

    def __init__(self, entity: str, gates: GateSettings, failing_rows: FailingRows, sample: Sample,
                 numbers: np.ndarray, script: str | None = None, form: str | None = None):
        self.texts = self.tokens = self.relaxed_tokens = 0
        self._entity, self._gates, self._failing_rows, self._sample = entity, gates, failing_rows, sample
        self._numbers, self._script, self._form, self._same = numbers, script, form, SameTexts()
        self._shared = SharedSpans()

    def add(self, batch: pa.RecordBatch, failures: Failures, known_errors: dict[str, str]) -> None:
        """Check a batch with the columns ``checks.COLUMNS``. known_errors: see ``Failures.add``."""
        for check, failed in zip(OF_ERRORS, failures.add(self._entity, batch, known_errors), strict=True):
            self.note(check, failed["entity_id"], None, failed["error"])
        texts = Texts(batch, self._numbers)
        self.texts += len(texts)
        self.tokens += int(texts.tokens.sum())
        self.relaxed_tokens += int(texts.relaxed_tokens.sum())
        self._sample.add(texts.ids, texts.tokens, texts.text)
        failing = checks.failing_texts(texts, self._gates, self._script, self._form)
        failing["same_text"] = self._same.add(texts.text, texts.prompts), texts.tokens
        shared = self._shared.add(texts.text, texts.prompts)
        failing["shared"] = shared > 0, shared
        for check, (failed, values) in failing.items():
            rows = pa.array(failed)
            self.note(check, texts.ids.filter(rows), values[failed], texts.text.filter(rows))

    def note(self, check: str, ids: pa.Array, values: np.ndarray | None, texts: pa.Array) -> None:
        """Count N failing rows of a check; arguments as for ``FailingRows.add``."""
        self._failing_rows.add(self._entity, check, ids, values, texts)

    def failing(self, check: str) -> tuple[int, list[str]]:
        """Number of failing rows of a check, and the first of their ids."""
        return self._failing_rows.rows[self._entity, check], self._failing_rows.first[self._entity, check]

    def finding(self, check: str) -> Finding:
        """Compare a check of single texts with its limit; fewer than MIN_FAILING_ROWS rows always pass."""
        limit = checks.limit(self._gates, check, self._form)
        rows, first = self.failing(check)
        part, whole = (self.relaxed_tokens, self.tokens) if check == "relaxed" else (rows, self.texts)
        value = part / whole if whole else None
        over = limit is not None and part > limit * whole
        too_few = over and rows < MIN_FAILING_ROWS
        why = f"fewer than {MIN_FAILING_ROWS} rows" if too_few else None
        return Finding(rows, self.texts, value, limit, over and not too_few, first, why)


def script(job: Job, entity: str) -> str | None:
    """The script of an entity type's prompts, by the first of them in the plan."""
    folder = stage_inputs.stage_folder(job, "plan", entity)
    prompts = paths.parquet_dataset(folder).head(_PROMPTS, columns=["prompt"],
                                                 filter=pc.field("prompt").is_valid())
    return content.main_script(prompts["prompt"].combine_chunks())


def numbers(job: Job) -> np.ndarray:
    """The tokens of the model's tokenizer that are numbers, bool (V,)."""
    from transformers import AutoTokenizer

    return number_tokens(AutoTokenizer.from_pretrained(
        job.model_path, trust_remote_code=job.config.model.trust_remote_code))


def readable(batches: Iterable[pa.RecordBatch], folder: AnyPath, fix: str) -> Iterator[pa.RecordBatch]:
    """Pass batches on.

    Raises
    ------
    DataError
        A file is damaged; the message names the folder and the fix.
    """
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{folder} is damaged ({str(error).splitlines()[0]}): {fix}") from error


def batches(files: Sequence[AnyPath]) -> Iterator[pa.RecordBatch]:
    """Read files in batches of about _BATCH rows; small files are combined, large ones are split."""
    waiting: list[pa.RecordBatch] = []
    for batch in _file_batches(files):
        waiting.append(batch)
        if sum(map(len, waiting)) >= _BATCH:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def _file_batches(files: Sequence[AnyPath]) -> Iterator[pa.RecordBatch]:
    """Read a few files at a time: a dataset keeps the footers of all files that it has read."""
    for first in range(0, len(files), _FILES):
        group = published.dataset_of_files(files[first:first + _FILES])
        yield from group.to_batches(columns=list(checks.COLUMNS), batch_size=_BATCH, batch_readahead=4)


def length_findings(job: Job, entity: str, sample: pa.Table, scan: Scan) -> dict[str, Finding]:
    """Compare lengths with the previous texts; ``scan`` counts the rows outside the limits."""
    gates = job.config.gates
    limits = {check: gates.limit(check) for check in OF_LENGTHS}
    why, pairs = _incomparable(job, entity), None
    if why is None:
        folder = published.previous_folder(job, entity)
        previous = published.dataset(folder).to_batches(columns=["entity_id", "tokens"])
        pairs = lengths.pair(sample, readable(previous, folder, "publish that date again"))
        if len(pairs.new) < MIN_LENGTH_PAIRS:
            why = f"{len(pairs.new)} pairs, fewer than {MIN_LENGTH_PAIRS}"
    if why is not None:
        return {check: Finding(0, 0, None, limits[check], why=why) for check in OF_LENGTHS}
    ratio, distance, findings = pairs.median_ratio(), pairs.distance(), {}
    if gates.max_length_ratio is not None:
        _note("length_ratio", pairs, pairs.outside(gates.max_length_ratio), scan)
    for check, value, deviation in (("length_ratio", ratio, max(ratio, 1 / ratio)),
                                    ("length_distance", distance, distance)):
        over = limits[check] is not None and deviation > limits[check]
        if over and check == "length_distance":
            _note(check, pairs, pairs.most_changed(distance), scan)
        rows, first = scan.failing(check)
        findings[check] = Finding(rows, len(pairs.new), value, limits[check], over, first)
    return findings


def _note(check: str, pairs: lengths.Pairs, failed: np.ndarray, scan: Scan) -> None:
    """Count the pairs of a mask, with the ratio of their lengths."""
    rows = pa.array(failed)
    scan.note(check, pairs.ids.filter(rows), pairs.ratio[failed], pairs.texts.filter(rows))


def _incomparable(job: Job, entity: str) -> str | None:
    """Why new and previous lengths are not compared; None: they are."""
    folder = published.previous_folder(job, entity)
    manifest = published.read_manifest(folder) if folder else {}
    if not manifest:
        return "no previous texts with a manifest"
    changed = [what for what, _, _ in published.writer_changes(job, folder, entity)]
    new_tokens = published.writer_record(job)["new_tokens"]
    if manifest.get("new_tokens", new_tokens) != new_tokens:
        changed.append("number of new tokens")
    return f"the previous texts have another {' and '.join(changed)}" if changed else None
