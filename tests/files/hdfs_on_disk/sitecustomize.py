"""Lets a Python that starts with this folder in PYTHONPATH find hdfs:// on this machine's disk."""

from fsspec.registry import known_implementations

known_implementations["hdfs"] = {"class": "hdfs_on_disk.OnDisk"}
