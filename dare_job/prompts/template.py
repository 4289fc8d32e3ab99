"""Templates in a sandbox: checked once, rendered often. Knows nothing about files and sets."""

import traceback
from collections.abc import Iterable
from functools import lru_cache

import jinja2
from jinja2 import nodes
from jinja2.meta import find_referenced_templates, find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dare_job.errors import ConfigError, describe

_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
)


def check(where: str, template: str, variables: Iterable[str]) -> None:
    """Raises ConfigError that begins with ``where`` and names the line.

    Where the template is empty, cannot be compiled, reads another one, or uses none of ``variables``.
    """
    if not template.strip():
        raise ConfigError(f"{where}: the template is empty")
    try:
        tree = _ENVIRONMENT.parse(template)
        _compiled(template)  # filters and tests
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}, line {error.lineno} of the template: {error.message}") from error
    if any(True for _ in find_referenced_templates(tree)):
        raise ConfigError(f"{where}: a template cannot include, import or extend another: write it as one")
    unknown = find_undeclared_variables(tree) - set(variables)
    if unknown:
        line = min(name.lineno for name in tree.find_all(nodes.Name) if name.name in unknown)
        raise ConfigError(f"{where}, line {line} of the template: uses unknown {', '.join(sorted(unknown))}; "
                          f"it may use {', '.join(sorted(variables))}")


def render(where: str, template: str, **values: object) -> str:
    """The text. Raises ConfigError as ``check`` does, where these values do not fit the template."""
    try:
        text = _compiled(template).render(**values)
        text.encode()  # half of a surrogate pair has no place in a table
    except Exception as error:  # filters and methods of values raise what they like
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == "<template>"]
        line = f", line {lines[-1]} of the template" if lines else ""
        why = str(error) if isinstance(error, jinja2.TemplateError) else describe(error)
        raise ConfigError(f"{where}{line}: {why}") from error
    return text


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    """Compiling costs a hundred times what rendering does."""
    return _ENVIRONMENT.from_string(template)
