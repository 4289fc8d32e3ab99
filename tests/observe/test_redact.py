"""Secrets are removed from log lines and manifests, and nothing else is."""

import pytest

from dare_job.config.settings import JobConfig
from dare_job.observe import redact


@pytest.mark.parametrize("given, shown", [
    ("http://bob:hunter2@gateway:9091/x", "http://***@gateway:9091/x"),
    ("https://hf_AbCdEf123456789@huggingface.co/o/m", "https://***@huggingface.co/o/m"),
    ("401 for hf_AbCdEf123456789 at o/m", "401 for *** at o/m"),
    ("GET /o/m?token=abc123&rev=1", "GET /o/m?token=***&rev=1"),
    ("fs.s3a.secret.key=AKIA/x+y", "fs.s3a.secret.key=***"),
    ("fs.azure.account.key.lake.windows.net=k+/9", "fs.azure.account.key.lake.windows.net=***"),
    ("hf_token: abc, rows: 3", "hf_token: ***, rows: 3"),
    ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
    ("62 rows, 3400 tokens, user@host, 3 tokens/s", "62 rows, 3400 tokens, user@host, 3 tokens/s"),
    ("--set decode.max_new_tokens=many", "--set decode.max_new_tokens=many"),
])
def test_secrets_are_known_by_their_look(given, shown):
    assert redact.text(given) == shown


def test_settings_keep_all_but_secrets():
    config = JobConfig.model_validate({
        "metrics": {"push": "http://bob:hunter2@gateway:9091"}, "decode": {"max_new_tokens": 7},
        "spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "AKIA", "spark.executorEnv.HF_TOKEN": "x",
                           "spark.task.cpus": "2"}}})
    kept = redact.values(config.model_dump(mode="json"))
    assert kept["metrics"]["push"] == "http://***@gateway:9091"
    assert kept["spark"]["conf"] == {"spark.hadoop.fs.s3a.secret.key": "***",
                                     "spark.executorEnv.HF_TOKEN": "***", "spark.task.cpus": "2"}
    plain = JobConfig.model_validate({"decode": {"max_new_tokens": 7}}).model_dump(mode="json")
    assert redact.values(plain) == plain
