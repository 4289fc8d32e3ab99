"""Tokenization of prompts, with the model's chat template if it has one."""

from typing import Literal

import numpy as np

from dare_job.errors import ConfigError


def prompt_ids(tokenizer, prompt: str,
               chat_template: Literal["auto", "always", "never"] = "auto") -> np.ndarray:
    """Tokenize one prompt.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    prompt : str
    chat_template : {"auto", "always", "never"}
        Whether to wrap the prompt as a user message. auto: if the tokenizer has a template.

    Returns
    -------
    ndarray, int32 (tokens,)

    Raises
    ------
    ConfigError
        If ``chat_template`` is unknown, or "always" and the tokenizer has no template.
    """
    if chat_template not in ("auto", "always", "never"):
        raise ConfigError(f"model.chat_template is {chat_template!r}; choose auto, always or never")
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat_template == "always" and not has_template:
        raise ConfigError("model.chat_template is 'always' but the tokenizer has none; use 'auto'")
    if chat_template == "never" or not has_template:
        return np.asarray(tokenizer(prompt)["input_ids"], np.int32)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
    # The template adds special tokens itself.
    return np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
