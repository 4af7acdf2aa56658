"""From a YAML file and overrides to a checked, frozen configuration of one stage.

Called by the tools. Paths inside a configuration are relative to the folder the command is run in,
except `base`, which is relative to the file that names it. Every fault is reported with file, line,
key and value; all faults of one kind of check (schema, then checks across sections) come together.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from paddle_ernie.config.checks import cross_faults
from paddle_ernie.config.faults import Fault, fault_error, nearest, schema_faults, shown
from paddle_ernie.config.inputs import input_faults
from paddle_ernie.config.overrides import apply_override
from paddle_ernie.config.source import Document, KeyPath, Place, Plain, dump_plain, parse_yaml
from paddle_ernie.config.stages import STAGES, StageConfig
from paddle_ernie.utils.errors import ConfigError

MAX_FILE_BYTES = 4_000_000  # a configuration is some kilobytes; more is another file by mistake
YAML_SUFFIXES = (".yaml", ".yml")


def load_config(
    path: Path | str, overrides: Sequence[str] = (), *, inputs_exist: bool = False
) -> StageConfig:
    """The configuration in `path`, over its `base` if it names one, under `overrides`.

    With `inputs_exist`, text and models that it names and that are not there are faults as well.
    """
    document = load_document(Path(path), overrides)
    config = resolve(document, heading=str(path))
    if inputs_exist and (faults := list(input_faults(config))):
        raise fault_error(str(path), faults, document)
    return config


def load_document(path: Path, overrides: Sequence[str] = ()) -> Document:
    """Merged plain values with their places; nothing is checked against a schema yet."""
    document = _read_mapping(path)
    if "base" in document.value:
        document = _over_base(document, path)
    for override in overrides:
        document = apply_override(document, override)
    return document


def resolve(document: Document, *, heading: str = "the configuration") -> StageConfig:
    """Validate a merged document: schema of its stage first, then checks across sections."""
    schema = STAGES.get(_stage(document, heading))
    assert schema is not None, "_stage returns a key of STAGES"
    try:
        # JSON in strict mode is what YAML means: no text for numbers, lists and mappings as such.
        config = schema.model_validate_json(json.dumps(document.value), strict=True)
    except ValidationError as error:
        faults = schema_faults(error, schema, document.value)
        raise fault_error(heading, faults, document) from error
    if faults := cross_faults(config):
        raise fault_error(heading, faults, document)
    return config


def plain(config: StageConfig) -> Plain:
    """The configuration as JSON-like values, defaults included."""
    return config.model_dump(mode="json")


def dump_yaml(config: StageConfig) -> str:
    """The whole configuration, defaults included; loading the text gives an equal one."""
    return dump_plain(plain(config))


def read_text(path: Path) -> str:
    """Text of a configuration file, or a ConfigError that says what is there instead."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file{_similar(path)}") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: is a folder, expected a YAML file{_similar(path)}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: more than {MAX_FILE_BYTES:,} bytes, expected a YAML file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte {raw[error.start]:#04x} is not UTF-8 text; "
            "a configuration is a YAML text file"
        ) from error


def _read_mapping(path: Path) -> Document:
    document = parse_yaml(read_text(path), str(path))
    if document.value is None:
        raise ConfigError(
            f"{path}: the file is empty; a configuration starts with `stage:` ({_stage_list()})"
        )
    if not isinstance(document.value, dict):
        kind = "a list" if isinstance(document.value, list) else "a single value"
        raise ConfigError(
            f"{path}:1: found {kind} ({shown(document.value)}), expected a mapping that starts "
            f"with `stage:` ({_stage_list()})"
        )
    return document


def _over_base(child: Document, path: Path) -> Document:
    """`child` laid over the file its `base` names; that file has no `base` of its own."""
    at, name = child.place(("base",)), child.value["base"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{at}  base = {shown(name)}\n    expected the path of one YAML file")
    base_path = path.parent / name
    if not base_path.is_file():
        problem = "is a folder" if base_path.is_dir() else "no such file"
        raise ConfigError(
            f"{at}  base = {shown(name)}\n    {problem}: {base_path}{_similar(base_path)}"
        )
    if base_path.resolve() == path.resolve():
        raise ConfigError(f"{at}  base = {shown(name)}\n    the file names itself as its base")
    base = _read_mapping(base_path)
    if "base" in base.value:
        raise ConfigError(
            f"{base.place(('base',))}  base = {shown(base.value['base'])}\n"
            f"    at most one parent: {path} already has {base_path} as its base; "
            "move the shared part into one of the two"
        )
    value = {key: inner for key, inner in child.value.items() if key != "base"}
    places = {where: place for where, place in child.places.items() if where[:1] != ("base",)}
    return merge(base, Document(value, places))


def merge(base: Document, child: Document) -> Document:
    """`child` over `base`: mappings merge key by key, everything else is replaced whole."""
    value, places = dict(base.value), dict(base.places)
    for key, inner in child.value.items():
        below = _below(child.places, key)
        if isinstance(inner, dict) and isinstance(value.get(key), dict):
            merged = merge(Document(value[key], _below(base.places, key)), Document(inner, below))
            inner, below = merged.value, merged.places
        value[key] = inner
        places = {where: at for where, at in places.items() if where[:1] != (key,)}
        places |= {(key, *where): at for where, at in below.items()}
    return Document(value, places | {(): child.place(())})


def _below(places: dict[KeyPath, Place], key: str) -> dict[KeyPath, Place]:
    return {where[1:]: at for where, at in places.items() if where[:1] == (key,)}


def _stage(document: Document, heading: str) -> str:
    stage = document.value.get("stage")
    if isinstance(stage, str) and stage in STAGES:
        return stage
    if "stage" not in document.value:
        near = nearest("stage", document.value)
        hint = f"; did you mean it by `{near}`?" if near else ""
        text = f"`stage` is required, but absent: {_stage_list()}{hint}"
        raise fault_error(heading, [Fault((near,) if near else (), text)], document)
    near = nearest(str(stage), STAGES)
    text = f"unknown stage, expected {_stage_list()}" + (f"; did you mean {near}?" if near else "")
    raise fault_error(heading, [Fault(("stage",), text)], document)


def _stage_list() -> str:
    return " or ".join(STAGES)


def _similar(path: Path) -> str:
    """A hint at YAML files that lie where a missing one was looked for."""
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        return f" (the folder {folder} does not exist)"
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in YAML_SUFFIXES)
    if near := nearest(path.name, names):
        return f"; did you mean {folder / near}?"
    return f"; YAML files there: {', '.join(names[:8])}" if names else ""
