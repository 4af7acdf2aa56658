"""What all configuration sections share: unknown keys are errors, values are frozen."""

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of a YAML file. Field documentation is the string under each field."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=()
    )


def key_fault(key: str, text: str) -> PydanticCustomError:
    """The error a section's validator raises; reports point at the line of `key`.

    `key` is relative to the section and may be dotted: `stages.2.init_from`.
    """
    return PydanticCustomError("key_fault", "{text}", {"text": text, "key": key})
