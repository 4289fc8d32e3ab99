"""The prompt format of a run: what stands around the prompts of an entity type."""

from datetime import date

from dare_job.config.settings import JobConfig
from dare_job.decode.prompt.format import PromptFormat


def prompt_format(config: JobConfig, entity: str, day: date | str | None = None) -> PromptFormat:
    """The format of an entity type's prompts. Reads the files of ``prompts``: call it on the driver.

    Parameters
    ----------
    day : date of the run, which chat templates print as today's
    """
    prompt_set = config.prompt_set(entity)
    return model_format(config, day, prompt_set.system_text(entity), prompt_set.example_turns(entity))


def model_format(config: JobConfig, day: date | str | None = None, system: str = "",
                 examples: tuple[tuple[str, str], ...] = ()) -> PromptFormat:
    """A format from the section ``model`` of the settings alone, by default without system text."""
    day = date.fromisoformat(day) if isinstance(day, str) else day
    return PromptFormat(config.model.chat_template, system, examples, config.model.template_arguments, day)
