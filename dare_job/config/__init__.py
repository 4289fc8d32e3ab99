"""Typed settings: defaults, YAML files, overrides, and messages about bad settings."""
