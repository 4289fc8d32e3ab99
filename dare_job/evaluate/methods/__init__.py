"""Decoding methods side by side, built-in ones and plug-ins: ``dare-job lab decode``."""
