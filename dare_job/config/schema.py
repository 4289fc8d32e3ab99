"""Settings of the form that texts are held to: a JSON schema, a regular expression or a list of choices."""

import json as json_
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from dare_job.config.base import Section

_PATH = "the path of a file with a JSON schema, or the schema in place"


def _json_text(value: Any) -> Any:
    """A JSON schema as text, of a mapping or of a file. The order of its properties is that of the texts."""
    if value is None:
        return None
    if isinstance(value, str):
        value = _read(value)
    if not isinstance(value, dict):
        raise ValueError(f"decode.schema: json = {value!r} is no JSON schema: write {_PATH}")
    try:
        return json_.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"decode.schema: json holds a value that is unknown to JSON ({error}); in YAML "
                         "write dates in quotes") from None


def _read(text: str) -> Any:
    """The JSON value of a text or, unless it begins as an object, of the file with this path."""
    try:
        return json_.loads(text if text.startswith("{") else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"decode.schema: json = {text!r} cannot be read ({error.strerror}): write {_PATH}"
                         ) from None
    except ValueError as error:
        raise ValueError(f"decode.schema: json = {text!r} is not valid JSON ({error}): write {_PATH}"
                         ) from None


with warnings.catch_warnings():  # pydantic has deprecated methods that are called json and schema
    warnings.simplefilter("ignore", UserWarning)

    class TextForm(Section):
        """The form of texts; at most one field is set.

        Attributes
        ----------
        json
            JSON schema, as text.
        regex
            Regular expression that each text matches as a whole.
        choices
            Texts one of which each text is.
        """

        json: Annotated[str | None, BeforeValidator(_json_text)] = None
        regex: Annotated[str, Field(min_length=1)] | None = None
        choices: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None

        @field_validator("choices")
        @classmethod
        def _are_texts(cls, value: list[str] | None) -> list[str] | None:
            for choice, count in Counter(value or ()).items():
                if count > 1 or choice != choice.strip():
                    problem = "occurs twice" if count > 1 else (
                        "begins or ends with white space, which published texts are without")
                    raise ValueError(f"decode.schema: choices: {choice!r} {problem}: correct the list")
            return value

        @model_validator(mode="after")
        def _has_one_kind(self):
            kinds = [kind for kind in TextForm.model_fields if getattr(self, kind) is not None]
            if len(kinds) > 1:
                raise ValueError(f"decode.schema: {' and '.join(kinds)} are both set: keep one of them")
            return self

        @property
        def kind(self) -> str | None:
            """``json``, ``regex``, ``choices``, or None: any text."""
            return next((kind for kind in TextForm.model_fields if getattr(self, kind) is not None), None)

        @property
        def value(self) -> str | list[str] | None:
            """The value of the field that is set."""
            return self.kind and getattr(self, self.kind)

    class TextForms(TextForm):
        """The form of texts, of both entity types or of one."""

        user: TextForm = TextForm()
        item: TextForm = TextForm()

    class WithSchema(Section):
        """A section with the form of texts."""

        schema: TextForms | None = Field(
            None, description="Form that each text must have (needs the extra schema). {json: FILE}: a JSON "
            "schema, by its path or in place. {regex: PATTERN}: a regular expression. {choices: [TEXT, "
            "TEXT]}: one of these texts. {user: {json: FILE}, item: {regex: PATTERN}}: by entity type. null: "
            "any text ([how to](../how-to/structured-output.md))")

        def form_of(self, entity: str | None = None) -> TextForm:
            """The form of the texts of an entity type; None: that of both."""
            forms = self.schema or TextForms()
            own = getattr(forms, entity) if entity else forms
            return own if own.kind else forms

        @property
        def forms(self) -> dict[str, TextForm]:
            """All forms that are set, by key."""
            forms = self.schema or TextForms()
            named = {"decode.schema": forms, "decode.schema.user": forms.user,
                     "decode.schema.item": forms.item}
            return {f"{name}.{form.kind}": form for name, form in named.items() if form.kind}
