"""What stands around every prompt of an entity type: system text, examples, and arguments of the template."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, get_args

ChatMode = Literal["auto", "always", "never"]
MODES: tuple[str, ...] = get_args(ChatMode)


@dataclass(frozen=True)
class PromptFormat:
    """How a prompt becomes the text that the model reads. Equal formats give equal token ids.

    Attributes
    ----------
    mode : whether the prompt is a message of the tokenizer's chat template; auto: if the tokenizer has one
    system : text of the system message; empty: none
    examples : (user, assistant) turns before the prompt
    arguments : arguments of the chat template
    day : date that a chat template prints as today's; None: the clock's date
    """

    mode: ChatMode = "auto"
    system: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    day: date | None = None

    def record(self) -> dict:
        """The format without its date as JSON values, for a manifest."""
        return {"chat_template": self.mode, "system": self.system,
                "examples": [list(turn) for turn in self.examples],
                "template_arguments": dict(self.arguments)}

    @classmethod
    def of_record(cls, record: Mapping[str, Any], day: date | None = None) -> "PromptFormat":
        """The format of a ``record``."""
        return cls(record["chat_template"], record["system"], tuple(map(tuple, record["examples"])),
                   record["template_arguments"], day)


PLAIN = PromptFormat()  # the prompt alone, in the chat template where there is one
