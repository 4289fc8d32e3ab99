"""Renders prompts with a tokenizer's chat template, or as plain text if there is none.

A format holds all that is the same for every prompt of an entity type: system text, examples, arguments of
the template.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, get_args

import jinja2

from dare_job.errors import ConfigError, describe

# Opening and closing tag of the thinking blocks of model families. gpt-oss names a channel before each
# message: only the message in channel final is the answer. Gemma 4 (last pair) thinks in a channel.
THINKING_TAGS = (
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"), ("<longcat_think>", "</longcat_think>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi
    ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>", "<|channel|>final<|message|>"), ("<|channel>", "<channel|>"))
_PLACEHOLDER = "\ue000prompt\ue001"  # private use: no template and no tokenizer knows it
_ANSWER = "\ue000answer\ue001"
# raised by templates, which are programs of others
_FAILURES = (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError,
             RuntimeError, AssertionError)
_CLOCK = re.compile(r"""\bstrftime_now\(\s*(["'])(.*?)\1\s*\)""")
ChatMode = Literal["auto", "always", "never"]
MODES: tuple[str, ...] = get_args(ChatMode)


@dataclass(frozen=True)
class PromptFormat:
    """How a prompt becomes the text that the model reads. Equal formats give equal token ids.

    Attributes
    ----------
    mode
        Whether the prompt is a message of the tokenizer's chat template; auto: if the tokenizer has one.
    system
        Text of the system message; empty: none.
    examples
        Turns (user, assistant) before the prompt.
    arguments
        Arguments of the chat template.
    day
        Date that a chat template prints as today's; None: the clock's date.
    """

    mode: ChatMode = "auto"
    system: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    day: date | None = None

    def with_examples(self, prompt: str) -> str:
        """The answers of the examples, then the prompt: everything that a text can copy."""
        return "\n\n".join([*(answer for _, answer in self.examples), prompt])

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


def chat_template(tokenizer, mode: str) -> str | None:
    """Source of the chat template that prompts are rendered with; None: plain text.

    Raises
    ------
    ConfigError
        ``mode`` is unknown, or "always" and the tokenizer has no template.
    """
    if mode not in MODES:
        raise ConfigError(f"model.chat_template is {mode!r}; choose {', '.join(MODES[:-1])} or {MODES[-1]}")
    templates = getattr(tokenizer, "chat_template", None)
    source = templates.get("default") if isinstance(templates, dict) else templates
    if mode == "always" and not source:
        raise ConfigError("model.chat_template is 'always' but the tokenizer has none; use 'auto'")
    return None if mode == "never" else source or None


def has_variable(template: str, name: str) -> bool:
    """Whether the source of a template uses a variable."""
    return re.search(rf"\b{name}\b", template) is not None


def prints_date(template: str | None) -> bool:
    """Whether a template calls for today's date."""
    return template is not None and _CLOCK.search(template) is not None


def pin_date(template: str | None, day: date | None) -> str | None:
    """The template with each call for the clock's date replaced by ``day``.

    The calls are replaced because ``apply_chat_template`` cannot pass functions to a template.
    """
    if template is None or day is None:
        return template
    return _CLOCK.sub(lambda call: json.dumps(day.strftime(call[2])), template)


class Renderer:
    """Renders prompts in one format.

    Attributes
    ----------
    template
        Source of the chat template; None: prompts are plain text.
    before, after
        Text around the prompt; ``after`` is None if the template does not print the prompt once.
    opens_thinking
        ``after`` opens a thinking block and does not close it.

    Raises
    ------
    ConfigError
        The template fails.
    """

    def __init__(self, tokenizer, prompt_format: PromptFormat):
        self._tokenizer, self._format = tokenizer, prompt_format
        self.template = chat_template(tokenizer, prompt_format.mode)
        self._dated = pin_date(self.template, prompt_format.day)
        self._arguments = self._template_arguments() if self.template else {}
        self._system_message = bool(prompt_format.system) and self._takes_system()
        frame = self.text(_PLACEHOLDER)
        self.before, _, after = frame.partition(_PLACEHOLDER)
        self.after = after if frame.count(_PLACEHOLDER) == 1 else None
        tail = self.after or ""
        self.opens_thinking = any(tail.rfind(opening) > tail.rfind(closing)
                                  for opening, closing in THINKING_TAGS)

    def text(self, prompt: str) -> str:
        """The text that the model reads.

        Raises
        ------
        ConfigError
            The chat template cannot be rendered.
        """
        if self.template is None:
            return self._front() + prompt
        return self._render([*self._messages(), {"role": "user", "content": prompt}])

    def after_answer(self) -> str:
        """What the template prints after an answer of the model; empty without a template."""
        if self.template is None:
            return ""
        turns = [{"role": "user", "content": _PLACEHOLDER}, {"role": "assistant", "content": _ANSWER}]
        return self._render(turns, add_generation_prompt=False).rpartition(_ANSWER)[2]

    def gaps(self) -> list[str]:
        """What the template prints before, between and after messages; empty without a template.

        Conversations that the template refuses are left out.
        """
        system, user, answer = ({"role": role, "content": f"\ue000{role}\ue001"}
                                for role in ("system", "user", "assistant"))
        gaps = []
        for messages in ([user], [system, user], [user, answer, user]) if self.template else ():
            with suppress(*_FAILURES):
                gaps += re.split("\ue000.*?\ue001", self._apply(messages))
        return gaps

    def _front(self) -> str:
        """System text and examples without a template: paragraphs before the prompt."""
        turns = [f"{user.rstrip()}\n{answer.strip()}" for user, answer in self._format.examples]
        parts = [self._format.system.strip(), *turns]
        return "".join(f"{part}\n\n" for part in parts if part)

    def _messages(self) -> list[dict[str, str]]:
        """Messages before the prompt."""
        turns = [{"role": role, "content": text} for example in self._format.examples
                 for role, text in zip(("user", "assistant"), example, strict=True)]
        return [{"role": "system", "content": self._format.system}, *turns] if self._system_message else turns

    def _takes_system(self) -> bool:
        """Whether the template prints a system message; some fail, and some leave it out."""
        system = {"role": "system", "content": _ANSWER}
        try:
            return _ANSWER in self._apply([system, {"role": "user", "content": _PLACEHOLDER}])
        except _FAILURES:
            return False

    def _render(self, messages: list[dict[str, str]], **options) -> str:
        system = self._format.system
        if system and not self._system_message:  # the system text becomes the beginning of the first message
            first, *rest = messages
            messages = [{**first, "content": f"{system.strip()}\n\n{first['content']}"}, *rest]
        try:
            return self._apply(messages, **options)
        except _FAILURES as error:
            arguments = f" with model.template_arguments = {dict(self._format.arguments)}"
            raise ConfigError(f"the tokenizer's chat template cannot be rendered"
                              f"{arguments if self._format.arguments else ''}: {describe(error)}; correct "
                              "the arguments, or set model.chat_template to never") from error

    def _apply(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self._tokenizer.apply_chat_template(
            messages, chat_template=self._dated, tokenize=False, add_generation_prompt=add_generation_prompt,
            **self._arguments)

    def _template_arguments(self) -> dict[str, Any]:
        """Arguments of the template: those of the format; thinking is off unless they switch it on."""
        defaults = {}
        if has_variable(self.template, "enable_thinking"):
            defaults["enable_thinking"] = False
        return defaults | dict(self._format.arguments)
