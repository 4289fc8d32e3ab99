"""What the sections of the settings are made of: how strictly they read, and types of numbers."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST = 2**31 - 1


class Section(BaseModel):
    """Strict: `true` is no number and `"8"` is none either; a whole number is a float, NaN is not."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), strict=True, allow_inf_nan=False)


AtLeastOne = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, le=MOST)]
Dtype = Literal["float32", "bfloat16", "float16"]  # of a model's weights
Share = Annotated[float, Field(ge=0, le=1)] | None
