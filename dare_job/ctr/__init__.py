"""The downstream check: do CTR models predict better with the text, and as well with relaxed text?"""
