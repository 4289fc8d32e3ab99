"""Between texts and token ids: chat templates, control tokens in prompts, thinking blocks in answers.

Knows neither models nor settings of the job.
"""
