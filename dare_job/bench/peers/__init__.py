"""``bench peers``: our engine beside vLLM, llama.cpp and transformers, on the same rows in one run.

    compare_engines.py  options, the order of measurements, the table
    task.py             the rows: prompts and earlier texts of a published date, as token ids
    environments.py     a virtual environment for each engine that has packages of its own
    workers/            a script for each engine, run in its environment; they import nothing of dare-job
                        except ``own.py``
"""
