"""Erases users and items from an output folder, and proves it by a search.

    subjects.py   whose data: ids, and their texts, which are remembered until the erasure is complete
    tables.py     which rows of a Parquet file are theirs; rewrites a file without them
    mentions.py   where other files mention them: JSON, logs, pages, archives
    search.py     searches all files of a folder
    remove.py     removes what was found: snapshots, working files, logs, ids, reports
    erasure.py    the order of it all, under the lock of ``clean``
"""
