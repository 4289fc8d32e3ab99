"""fsspec's class for HDFS, with pyarrow's local files in place of those of Hadoop's native client."""

from fsspec.implementations.arrow import ArrowFSWrapper, HadoopFileSystem
from pyarrow.fs import LocalFileSystem


class OnDisk(HadoopFileSystem):
    def __init__(self, **options):
        ArrowFSWrapper.__init__(self, fs=LocalFileSystem(), **options)
