"""What training commands ask of their numbers; each error names the option."""

from typing import Any

from dare_job.errors import ConfigError


def option(name: str) -> str:
    """The option that sets a field."""
    return f"--{name.replace('_', '-')}"


def require_at_least(settings: Any, **least: int) -> None:
    """Fields of the settings and the least that each may be. Raises ConfigError."""
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise ConfigError(f"{option(name)} is {getattr(settings, name)}; it must be at least {bound}")


def require_heads(width: int, heads: int) -> None:
    """Rotary positions need an even width of each head. Raises ConfigError."""
    if width % (2 * heads):
        raise ConfigError(f"--width {width} is no multiple of twice --heads {heads}")


def require_rate(rate: float) -> None:
    """A learning rate. Raises ConfigError."""
    if not 0 < rate <= 1:
        raise ConfigError(f"--rate is {rate:g}; it must be above 0 and at most 1")
