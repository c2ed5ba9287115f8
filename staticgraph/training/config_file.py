"""Reads the settings of a run from a TOML file, and writes them to the run's folder.

A key is the name of an option, ``batch-size`` or ``batch_size``. An unknown key is an error that
names it, since a misspelt setting that is ignored would be noticed after the run, if at all.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from staticgraph.files import atomic
from staticgraph.models.named import is_spec
from staticgraph.training.config import TrainConfig

# Sizes that do not apply to a ``module:build`` model.
OF_THE_ZOO = ("hidden", "layers", "dropout", "pool")
KEYS = tuple(field.name for field in fields(TrainConfig))


def read_config(path: str | Path) -> dict[str, Any]:
    """Reads the settings in a file, by the names of :class:`TrainConfig`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not valid TOML, or has an unknown or duplicate key, or a value that
            is not a number, string or bool.
    """
    path = Path(path)
    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    settings = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in KEYS:
            near = difflib.get_close_matches(name, KEYS, n=1)
            asked = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(KEYS)}"
            raise ValueError(f"{path}: there is no setting {key!r}: {asked}")
        if name == "target" and isinstance(value, list) and _are_names(value):
            value = tuple(value)
        elif not isinstance(value, str | int | float | bool):
            kind = type(value).__name__
            raise ValueError(f"{path}: {key} is a {kind}; a setting is a number, a text or a bool")
        if name in settings:
            raise ValueError(f"{path}: {name} is there twice, once as {name.replace('_', '-')}")
        settings[name] = value
    return settings


def write_config(path: str | Path, config: TrainConfig) -> None:
    """Writes all settings that have a value, so that ``--config`` starts the same run again; the
    sizes of the zoo are omitted for a ``module:build`` model."""
    lines = [f"{name} = {_toml(value)}" for name, value in _values(config).items()]
    atomic.write_text(path, "\n".join(lines) + "\n")


def _values(config: TrainConfig) -> Mapping[str, Any]:
    left_out = OF_THE_ZOO if is_spec(config.model) else ()
    return {
        name: value
        for name, value in asdict(config).items()
        if value is not None and name not in left_out
    }


def _are_names(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # a JSON string is a TOML string, except for this character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
