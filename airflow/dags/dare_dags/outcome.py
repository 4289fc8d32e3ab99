"""Parses the output of a command of the job: its error, its exit code and its result, a JSON line."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airflow.sdk.exceptions import AirflowException, AirflowFailException

MEANING = {1: "unexpected error", 2: "settings", 3: "quality gate", 4: "input data",
           5: "Java, Spark, disk or device", 6: "model", 7: "pool files"}
FINAL = (2, 3, 4, 6, 7)  # a retry without changes fails again
_RECORD = {"timestamp", "level", "event"}  # keys of log records, which results lack
# How spark-submit reports the exit code of a driver in the cluster.
_IN_THE_CLUSTER = re.compile(r"(?:exited with(?: status| code)?:? |exit ?code: )(\d+)", re.IGNORECASE)


@dataclass
class Outcome:
    """Filled by ``listen``.

    Attributes
    ----------
    error
        Error message of the job, or that of its last log record.
    result
        The last JSON object that is not a log record.
    driver_code
        Exit code of a driver in the cluster; None if unknown.
    """

    error: str | None = None
    result: dict | None = None
    driver_code: int | None = None

    def listen(self, lines: Iterable[str]) -> Iterator[str]:
        """Pass lines on and parse them."""
        for line in lines:
            text = line.strip()
            if text.startswith("dare-job: "):
                self.error = text.removeprefix("dare-job: ")
            elif text.startswith("{"):
                self._read(_json(text))
            elif match := _IN_THE_CLUSTER.search(text):
                self.driver_code = int(match[1])
            yield line

    def _read(self, entry: dict | None) -> None:
        if entry is None:
            return
        if not entry.keys() >= _RECORD:
            self.result = entry
        elif entry.get("exit_code") and "error" in entry:  # the last record of a failed command
            self.error = f"{entry['error']}: {str(entry['event']).removeprefix('failed: ')}"

    def failure(self, command: str, code: int | None, in_cluster: bool = False) -> AirflowException:
        """The exception of a failed command; AirflowFailException prevents retries that would fail as well.

        Parameters
        ----------
        code
            Exit code of the local process; None: unknown.
        in_cluster
            The driver ran in the cluster, so prefer ``driver_code``.
        """
        if in_cluster and code in (None, 1) and self.driver_code:
            code = self.driver_code
        meaning = f" ({MEANING[code]})" if code in MEANING else ""
        reason = self.error or "see the log of the task"
        kind = AirflowFailException if code in FINAL else AirflowException
        return kind(f"{command} exited with code {code}{meaning}: {reason}")


def _json(text: str) -> dict | None:
    try:
        return json.loads(text)
    except ValueError:
        return None
