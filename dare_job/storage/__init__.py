"""Files on disks, S3 and HDFS: paths, atomic replacement, versions, locks."""
