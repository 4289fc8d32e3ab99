"""The Python interface: what ``dare_job.__all__`` names. Needs neither Spark nor faiss.

    llm.py         LLM: a model in memory that generates texts with drafts
    completion.py  Completion: one generated text
    pool.py        Pool: indexed texts to draft from
    replays.py     replay: accepted tokens of recorded texts, without a model
    export.py      dare-job pools export: pools for other inference engines
    prompts.py     token ids of prompts, chat messages and texts
"""
