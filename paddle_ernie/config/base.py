"""What all configuration sections share: unknown keys are errors, values are frozen."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of a YAML file. Field documentation is the string under each field."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=()
    )
