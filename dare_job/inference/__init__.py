"""Models in memory, and engines made from the job's settings; without Spark.

    model.py    loads a model with its tokenizer; the text of generated tokens
    engines.py  makes engines and drafters from the settings
    checks.py   checks the settings of drafting before weights are loaded
    tokenizer.py, prompt_format.py  what turns prompts into token ids
    warm_up.py  compiles the kernels of a process
"""
