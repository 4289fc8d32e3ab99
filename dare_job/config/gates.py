"""Section of the settings for the quality gates."""

import difflib
from typing import Annotated

from pydantic import Field, field_validator

from dare_job.config.base import Section, Share

MAX_SHARE = {"empty": 0.01, "short": 0.02, "cut_off": 0.5, "schema": 0.05, "loop": 0.02,
             "unprintable": 0.01, "copied": 0.02, "refusal": 0.01, "wrong_script": 0.01, "thinking": 0.01,
             "shell": 0.01, "same_text": 0.05, "shared": None, "relaxed": 0.25, "length_distance": 0.3}


class GateSettings(Section):
    """Limits for the new texts of an entity type; null disables a check (docs/how-to/quality-gates.md)."""

    max_share: dict[str, Share] = Field(
        MAX_SHARE, description="Maximum share of texts that fail each check; checks that are left out keep "
        "their defaults. null: no limit. empty: no visible character. short: ended by itself with fewer than "
        "8 tokens. cut_off: by decode.max_new_tokens. schema: ended before decode.schema allows it. loop: "
        "repeats itself. unprintable: control characters, "
        "U+FFFD or broken UTF-8. copied: a third of it is copied from the prompt. refusal: 'As an AI'. "
        "wrong_script: most letters in another script than the prompts. thinking: has a thinking tag. shell: "
        "without content, such as 'Preferences: none'. same_text: equals the text of another row with "
        "another prompt. shared: shares 24 words or more in a row with the text of another row. relaxed: "
        "share of tokens that are not the model's argmax. length_distance: Kolmogorov-Smirnov distance of "
        "the lengths from those of the entities' previous texts")
    refusal_patterns: list[str] = Field([], description="Further patterns of the check refusal, for instance "
                                        "in another language: regular expressions (RE2); case is ignored")
    max_length_ratio: Annotated[float, Field(ge=1)] | None = Field(
        1.3, description="Maximum ratio of the median text length to that of the entities' previous texts, "
        "either way")

    def limit(self, check: str) -> float | None:
        """The limit of a check of texts or of their lengths."""
        return self.max_share[check] if check in self.max_share else getattr(self, f"max_{check}")

    @field_validator("max_share", mode="before")
    @classmethod
    def _others_keep_their_defaults(cls, value):
        if not isinstance(value, dict):
            return MAX_SHARE if value is None else value
        for check in value:
            if check not in MAX_SHARE:
                close = difflib.get_close_matches(str(check), MAX_SHARE, n=1)
                raise ValueError(f"gates.max_share.{check}: no such check"
                                 f"{f' (did you mean {close[0]}?)' if close else ''}; checks: "
                                 f"{', '.join(MAX_SHARE)}")
        return MAX_SHARE | value

    @field_validator("refusal_patterns")
    @classmethod
    def _compile(cls, value: list[str]) -> list[str]:
        if value:  # imported here, because it is slow
            import pyarrow as pa
            import pyarrow.compute as pc
        for pattern in value:
            try:
                pc.match_substring_regex(pa.array([""]), pattern)  # RE2, as in the gate: no look-ahead
            except pa.ArrowInvalid as error:
                raise ValueError(f"gates.refusal_patterns: {pattern!r} is not a valid regular expression "
                                 f"({error}); "
                                 r"write plain words, or escape special characters with \\") from None
        return value
