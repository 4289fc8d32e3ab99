"""The argument of every stage: settings, workspace and Spark session."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dare_job.config.settings import JobConfig
from dare_job.models import files
from dare_job.spark import environment, executors
from dare_job.spark.session import session
from dare_job.workspace import Workspace


@dataclass(frozen=True)
class Job:
    """One date to run.

    Attributes
    ----------
    limit
        Maximum number of texts to generate of each entity type.
    choice
        Verification chosen for ``verify.target`` (``dare_job/evaluate/curve/choose.py``).
    """

    config: JobConfig
    space: Workspace
    run_id: str
    limit: int | None = None
    choice: dict | None = None

    @cached_property
    def spark(self):
        """The Spark session, started on first use, after a check that its executors can reach all files."""
        started = session(self.config.spark)
        source = self.config.input
        inputs = {"input.path": source.path, "input.knowledge": source.knowledge}
        environment.check_paths(started, {"out": self.space.out, **inputs})
        executors.check_executors(started, self.space.work, inputs)
        return started

    @cached_property
    def model_hash(self) -> str:
        """Fingerprint of the files of the model and the tokenizer."""
        return files.fingerprint(self.model_path)

    @cached_property
    def model_path(self) -> Path:
        """Local folder of the model, downloaded from the hub if the name is not a folder."""
        model = self.config.model
        return files.resolve(model.name, trust_remote_code=model.trust_remote_code)

    @cached_property
    def draft_path(self) -> Path | None:
        """Local folder of the draft model; None if there is none."""
        name = self.config.drafter.model
        trust = self.config.model.trust_remote_code
        return name and files.resolve(name, trust_remote_code=trust, setting="drafter.model")

    @cached_property
    def draft_hash(self) -> str | None:
        """Fingerprint of the draft model's files."""
        return self.draft_path and files.fingerprint(self.draft_path)
