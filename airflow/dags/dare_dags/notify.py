"""Messages about published dates and failures, sent to the log and to an optional webhook."""

import json
import logging
import urllib.request

from airflow.sdk import BaseHook

_LOG = logging.getLogger(__name__)


def send(text: str, connection: str | None) -> None:
    """Log the text and post ``{"text": ...}`` to the URL in the connection's password; None: only log."""
    _LOG.info(text)
    if connection is None:
        return
    address = BaseHook.get_connection(connection).password
    request = urllib.request.Request(  # noqa: S310
        address, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        _LOG.info("message sent to %s: HTTP %s", connection, answer.status)


def published(summary: dict) -> str:
    """Message about a published date."""
    counts = [f"{found['rows']} {entity}s ({found['written']} generated, {found['carried']} carried over, "
              f"{found['errors']} errors)" for entity, found in summary["counts"].items()]
    text = f"dare-job {summary['date']} is published in {summary['out']}"
    text = f"{text}: {', '.join(counts)}" if counts else text
    return f"{text}. Report: {summary['report']}" if summary["report"] else text


def late(connection: str | None, hours: float, context: dict) -> None:
    """Callback of a run that has not finished ``hours`` after it was queued."""
    run = context["dag_run"]
    send(f"{run['dag_id']}: {run['dag_run_id']} has not finished after {hours:g} h. If its first task has "
         "not started yet, the previous date has failed or is still running", connection)


def on_failure(connection: str | None):
    """Callback of a task that has failed and is not retried."""
    def callback(context) -> None:
        ti = context["ti"]
        send(f"{ti.dag_id}: {ti.task_id} of {ti.run_id} failed in attempt {ti.try_number}: "
             f"{context.get('exception')} {getattr(ti, 'log_url', '')}", connection)
    return callback
