"""An S3 server (moto) in this process. Processes find it through the environment variables that boto reads.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "night"


@contextmanager
def running(spark) -> Iterator[str]:
    """Yield the URL of a new bucket. Spark's Python workers get the variables as well."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "somebody",
                 "AWS_SECRET_ACCESS_KEY": "something", "AWS_DEFAULT_REGION": "us-east-1"}
    before = {name: os.environ.get(name) for name in variables}
    workers, environment = spark.sparkContext.environment.copy(), spark.sparkContext.environment
    os.environ.update(variables)
    environment.update(variables)
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}"
    finally:
        environment.clear()
        environment.update(workers)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        server.stop()


def keys(prefix: str = "") -> list[str]:
    """Keys of all objects in the bucket with this prefix."""
    import boto3

    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", ())]
