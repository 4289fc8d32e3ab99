"""Arguments, paths and texts that the locale of this process cannot represent.

Only a process that does not use UTF-8 for file names is affected (LC_ALL=C with PYTHONUTF8=0, or a locale of
another encoding), and one that spark-submit started in such a locale.
"""

import codecs
import os
import sys

from dare_job.errors import ConfigError


def check_arguments() -> None:
    """Check that the arguments of the command line consist of characters of the locale.

    Raises
    ------
    ConfigError
        An argument has other characters.
    """
    _check_submitted_arguments()
    if sys.getfilesystemencoding() == "utf-8":
        return
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise _unusable(os.fsencode(argument).decode(errors="replace")) from None


def _check_submitted_arguments() -> None:
    """Raise ConfigError if spark-submit has replaced the bytes of a character, at least two, by ``?``."""
    damaged = [argument for argument in sys.argv[1:] if "??" in argument]
    if not damaged:
        return
    from dare_job.spark import environment

    encoding = environment.submitting_java_encoding()
    if encoding and codecs.lookup(encoding).name != "utf-8":
        raise ConfigError(f"spark-submit has replaced characters of {damaged[0]} by question marks, because "
                          f"{environment.locale_problem(encoding)}")


def explained(error: Exception) -> Exception:
    """A ConfigError that names the locale, if the error is about a character that it does not have."""
    if not isinstance(error, UnicodeEncodeError) or sys.getfilesystemencoding() == "utf-8" or (
            codecs.lookup(error.encoding).name == "utf-8"):
        return error
    return _unusable(error.object[:200])


def _unusable(text: str) -> ConfigError:
    from dare_job.spark.environment import locale_problem

    return ConfigError(f"{text} cannot be used, because {locale_problem(sys.getfilesystemencoding())}")
