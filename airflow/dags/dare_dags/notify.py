"""Messages on what was published and what failed: to the log, and to a webhook where one is set."""

import json
import logging
import urllib.request

from airflow.sdk import BaseHook

_LOG = logging.getLogger(__name__)


def tell(text: str, connection: str | None) -> None:
    """Log the text; where a connection is given, post ``{"text": ...}`` to its password, an address."""
    _LOG.info(text)
    if connection is None:
        return
    address = BaseHook.get_connection(connection).password
    request = urllib.request.Request(  # noqa: S310
        address, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        _LOG.info("told %s: HTTP %s", connection, answer.status)


def published(summary: dict) -> str:
    """One line on a published date."""
    counts = [f"{found['rows']} {entity}s ({found['written']} written, {found['carried']} carried over, "
              f"{found['errors']} errors)" for entity, found in summary["counts"].items()]
    text = f"dare-job {summary['date']} is published in {summary['out']}"
    text = f"{text}: {', '.join(counts)}" if counts else text
    return f"{text}. Report: {summary['report']}" if summary["report"] else text


def late(connection: str | None, hours: float, context: dict) -> None:
    """Callback of a run that has not ended ``hours`` after it was queued."""
    run = context["dag_run"]
    tell(f"{run['dag_id']}: {run['dag_run_id']} has not ended after {hours:g} h. If its first task has not "
         "begun yet, the date before has failed or runs still", connection)


def on_failure(connection: str | None):
    """Callback of a task that failed for good."""
    def callback(context) -> None:
        ti = context["ti"]
        tell(f"{ti.dag_id}: {ti.task_id} of {ti.run_id} failed in try {ti.try_number}: "
             f"{context.get('exception')} {getattr(ti, 'log_url', '')}", connection)
    return callback
