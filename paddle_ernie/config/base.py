"""What all configuration sections share: unknown keys are errors, values are frozen and finite."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of a YAML file. Field documentation is the string under each field."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )


def key_fault(key: str, text: str) -> PydanticCustomError:
    """The error a section's validator raises; reports point at the line of `key`.

    `key` is relative to the section and may be dotted: `stages.2.init_from`.
    """
    return PydanticCustomError("key_fault", "{text}", {"text": text, "key": key})


def _user_path(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip():
        # Path("") would be the current folder: a run that writes there, a source that reads it.
        raise ValueError("expected a path, found empty text; `.` is the current folder")
    if "\0" in value:
        raise ValueError("expected a path; a path cannot hold a NUL character")
    if not value.startswith("~"):
        return value
    try:
        return str(Path(value).expanduser())
    except RuntimeError as error:
        raise ValueError("expected a path; `~` names no home folder here") from error


UserPath = Annotated[Path, BeforeValidator(_user_path)]
"""A path as users write it: not empty, `~` is the home folder (shells leave it in KEY=~/x)."""
