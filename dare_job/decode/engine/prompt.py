"""A prompt's text to token ids, with the model's chat template where it has one."""

from typing import Literal

import numpy as np

from dare_job.errors import ConfigError


def prompt_ids(tokenizer, prompt: str,
               chat_template: Literal["auto", "always", "never"] = "auto") -> np.ndarray:
    """Token ids int32 (tokens,) of one prompt.

    chat_template  "auto": wrapped as a user's message where the tokenizer has a template; "always": a
                   tokenizer without one is an error; "never": the bare text.
    Raises ConfigError.
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
    # The template writes its own special tokens.
    return np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
