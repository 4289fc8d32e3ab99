"""The format of prompts that the settings ask for."""

from datetime import date

from dare_job.config.settings import JobConfig
from dare_job.decode.prompt.template import PromptFormat


def model_format(config: JobConfig, day: date | str | None = None, system: str = "",
                 examples: tuple[tuple[str, str], ...] = ()) -> PromptFormat:
    """A format from the section ``model`` of the settings alone, by default without system text."""
    day = date.fromisoformat(day) if isinstance(day, str) else day
    return PromptFormat(config.model.chat_template, system, examples, config.model.template_arguments, day)
