"""Drafters: a row's text in, a token tree out."""
