"""Converts prompts to token ids and token ids to answers.

    template.py  renders prompts with the chat template
    tokens.py    token ids of prompts; control tokens in titles and attributes become ordinary text
    markers.py   breaks up text in titles and attributes that marks a turn in the chat template
    answers.py   the answer after a thinking block, and the token that ends a turn

These modules know neither models nor settings of the job.
"""
