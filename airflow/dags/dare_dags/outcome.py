"""What a command of the job said: its error, its exit code and the JSON line at its end."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airflow.sdk.exceptions import AirflowException, AirflowFailException

MEANING = {1: "unexpected error", 2: "settings", 3: "quality gate", 4: "input data",
           5: "Java, Spark or disk", 6: "model", 7: "pools"}
FINAL = (2, 3, 4, 6, 7)  # trying again as it is gives the same
_RECORD = {"timestamp", "level", "event"}  # what each JSON line of the job's log has, and no result
# How spark-submit's own lines name the driver's exit code where the driver ran in the cluster.
_IN_THE_CLUSTER = re.compile(r"(?:exited with(?: status| code)?:? |exit ?code: )(\d+)", re.IGNORECASE)


@dataclass
class Outcome:
    """Filled by ``listen`` while lines pass.

    error        the job's own line on what is wrong; without it, its last log record's
    result       the last line that is a JSON object and no log record
    driver_code  exit code of a driver in the cluster, where lines name one
    """

    error: str | None = None
    result: dict | None = None
    driver_code: int | None = None

    def listen(self, lines: Iterable[str]) -> Iterator[str]:
        """The same lines, looked at."""
        for line in lines:
            text = line.strip()
            if text.startswith("dare-job: "):
                self.error = text.removeprefix("dare-job: ")
            elif text.startswith("{"):
                self._read(_json(text))
            elif found := _IN_THE_CLUSTER.search(text):
                self.driver_code = int(found[1])
            yield line

    def _read(self, found: dict | None) -> None:
        if found is None:
            return
        if not found.keys() >= _RECORD:
            self.result = found
        elif found.get("exit_code") and "error" in found:  # the last record of a command that failed
            self.error = f"{found['error']}: {str(found['event']).removeprefix('failed: ')}"

    def failure(self, command: str, code: int | None, in_cluster: bool = False) -> AirflowException:
        """The exception for a failed command: AirflowFailException, which ends retries, where they are vain.

        code        of the process that was started here; None: unknown
        in_cluster  the driver ran elsewhere, and spark-submit's own code says little
        """
        if in_cluster and code in (None, 1) and self.driver_code:
            code = self.driver_code
        named = f" ({MEANING[code]})" if code in MEANING else ""
        said = self.error or "the task's log has the reason"
        kind = AirflowFailException if code in FINAL else AirflowException
        return kind(f"{command} ended with exit code {code}{named}: {said}")


def _json(text: str) -> dict | None:
    try:
        return json.loads(text)
    except ValueError:
        return None
