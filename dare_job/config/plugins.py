"""Classes that users plug in, named ``package.module:Class`` or ``package.module:Class(option=value)``.

A module is imported only when its name is used. Interfaces of the classes: docs/how-to/add-your-method.md.
"""

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dare_job.errors import ConfigError, describe

_NAME = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<name>\w+)(\((?P<options>.*)\))?", re.DOTALL)
FORM = ("package.module:Class, or package.module:Class(option=value, ...) with numbers, strings, True, False "
        "or None")
_VALUES = int | float | str | None
# By kind: what an object is made from beside its options, and the members that its class must have.
KINDS = {"drafter": ((), ("draft",)), "verifier": (("eos",), ("__call__", "lossless")),
         "draft budget": (("curve", "nodes", "round_up"),
                          ("row_nodes", "min_score", "select", "observe", "record_step"))}


@dataclass(frozen=True)
class PlugIn:
    """A class of a user, with its options.

    Attributes
    ----------
    kind
        A key of ``KINDS``.
    setting
        The setting or option that names it, for messages.
    text
        The name as the user wrote it.
    """

    kind: str
    setting: str
    text: str
    module: str
    name: str
    options: Mapping[str, Any]

    @classmethod
    def parse(cls, kind: str, setting: str, text: str) -> "PlugIn":
        """Read a name, without importing anything.

        Raises
        ------
        ConfigError
            It has another form.
        """
        match = _NAME.fullmatch(text.strip())
        try:
            options = _options(match["options"] or "")
        except (TypeError, ValueError, SyntaxError):
            raise ConfigError(f"{setting} = {text!r} does not name a {kind}: write {FORM}") from None
        return cls(kind, setting, text, match["module"], match["name"], options)

    def load(self) -> type:
        """Import the class.

        Raises
        ------
        ConfigError
            The import failed, the class lacks a member of its interface, or does not take the options.
        """
        try:
            module = import_module(self.module)
        except Exception as error:
            missing = f"{self.module}.".startswith(f"{getattr(error, 'name', None)}.")
            fix = "its folder must be in PYTHONPATH, or its package installed" if missing else "fix it"
            raise self._wrong(f"importing {self.module} failed ({describe(error)}): {fix}") from error
        loaded = vars(module).get(self.name)
        if not isinstance(loaded, type):
            others = [name for name, value in vars(module).items()
                      if isinstance(value, type) and value.__module__ == module.__name__]
            raise self._wrong(f"{self.module} has no class {self.name}; it has {', '.join(others) or 'none'}")
        given, expected = KINDS[self.kind]
        members = set().union(*map(vars, loaded.__mro__))
        if lacking := [member for member in expected if member not in members]:
            raise self._wrong(f"{self.name} has no {', '.join(lacking)}: a {self.kind} has "
                              f"{', '.join(expected)} (docs/how-to/add-your-method.md)")
        try:
            inspect.signature(loaded).bind(*given, **self.options)
        except TypeError as error:
            raise self._wrong(f"{self.name}({', '.join((*given, '**options'))}) is how it is made, and "
                              f"{error}") from None
        if self.kind == "verifier" and not isinstance(loaded.lossless, bool):
            raise self._wrong(f"{self.name}.lossless is {loaded.lossless!r}; it must be True or False, an "
                              "attribute of the class")
        return loaded

    def make(self, *arguments: Any) -> Any:
        """Make an object of the class with its options.

        Raises
        ------
        ConfigError
            As ``load``, or the class fails.
        """
        loaded = self.load()
        try:
            return loaded(*arguments, **self.options)
        except Exception as error:
            raise self._wrong(f"{self.name} could not be made: {describe(error)}") from error

    def record(self) -> dict:
        """Name, options and version, for fingerprints and manifests.

        ``version`` is that of the top package, if it has one; ``sha256`` is the digest of the module's file.
        """
        loaded = self.load()
        module = sys.modules[loaded.__module__]
        return {"name": f"{self.module}:{self.name}", "options": dict(sorted(self.options.items())),
                "version": str(getattr(sys.modules[self.module.partition(".")[0]], "__version__", "")),
                "sha256": _digest(module)}

    def _wrong(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.setting} = {self.text!r}: {reason}")


def _options(text: str) -> dict[str, Any]:
    """The keyword arguments of a call. Raises ValueError or SyntaxError."""
    call = ast.parse(f"_({text}\n)", mode="eval").body
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
        raise ValueError(text)
    options = {option.arg: ast.literal_eval(option.value) for option in call.keywords}
    allowed = all(isinstance(value, _VALUES) for value in options.values())
    if None in options or len(options) < len(call.keywords) or not allowed:
        raise ValueError(text)
    return options


def _digest(module) -> str:
    """Digest of a module's file, which may be in an archive; empty if there is none."""
    spec = getattr(module, "__spec__", None)
    read = getattr(spec and spec.loader, "get_data", None)
    return hashlib.sha256(read(spec.origin)).hexdigest() if read else ""
