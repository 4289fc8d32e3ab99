"""What a command of the job said: its error, its exit code and the JSON line at its end."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airflow.sdk.exceptions import AirflowException, AirflowFailException

MEANING = {1: "unexpected error", 2: "settings", 3: "too many rows failed, or a quality gate",
           4: "input data", 5: "Java, Spark or disk", 6: "model", 7: "pools"}
FINAL = (2, 3, 4, 6, 7)  # trying again as it is gives the same
# How spark-submit's own lines name the driver's exit code where the driver ran in the cluster.
_IN_THE_CLUSTER = re.compile(r"(?:exited with(?: status| code)?:? |exit ?code: )(\d+)", re.IGNORECASE)


@dataclass
class Outcome:
    """Filled by ``listen`` while lines pass.

    error        the job's own line on what is wrong
    result       the last line that is a JSON object
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
                self.result = _json(text) or self.result
            elif found := _IN_THE_CLUSTER.search(text):
                self.driver_code = int(found[1])
            yield line

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
