"""A small model trained on real profiles, and the texts that it generates, with which decoding is measured.

The profiles are those that an 8B model wrote for the users of MovieLens 1M. The data are not part of the
project: see ``data.py`` for the files.
"""
