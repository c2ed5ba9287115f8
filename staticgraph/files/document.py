"""JSON documents with a checksum that detects changes.

A plan with one changed digit is still a valid plan, but with other buckets. A document therefore
contains a digest of its own values (BLAKE2b over their plain JSON, in order): layout and
indentation may change, values may not. Documents without a digest, from earlier versions or written
by hand, are accepted as they are.

A file may also be truncated, or be a different file altogether. Each reader knows what it needs;
any error while it looks for that becomes one error here, which names the file and what it should
contain.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from staticgraph.files import atomic


def to_json(values: Any) -> str:
    """Returns plain values as JSON, with null for NaN and infinities."""
    return json.dumps(finite(values), indent=1, allow_nan=False)


def finite(values: Any) -> Any:
    """Returns the same values with None for every float that is not finite."""
    if isinstance(values, dict):
        return {key: finite(item) for key, item in values.items()}
    if isinstance(values, list | tuple):
        return [finite(item) for item in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def save_json(path: str | Path, values: Any) -> None:
    """Writes values as JSON, whole or not at all."""
    atomic.write_text(path, to_json(values) + "\n")


T = TypeVar("T")

KEY = "checksum"
# The exceptions that reading an expected key, number or list raises on other contents.
NOT_THERE = (
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    ValueError,
    ArithmeticError,
    RecursionError,
)


def digest(values: Any) -> str:
    """Returns sixteen hexadecimal digits that change with any value."""
    plain = json.dumps(values, separators=(",", ":"))
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


def save(path: str | Path, values: Mapping[str, Any], indent: int | None = 1) -> None:
    """Writes values with their digest, whole or not at all."""
    plain = json.loads(json.dumps(values))
    text = json.dumps({**plain, KEY: digest(plain)}, indent=indent)
    atomic.write_text(path, text + "\n")


def read(path: str | Path) -> Any:
    """Reads the values of a JSON file, including the digest; :func:`check` removes it.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: (or RecursionError) if it is not JSON.
    """
    return json.loads(Path(path).expanduser().read_bytes())


def check(values: Any) -> Any:
    """Checks the digest and returns the values without it.

    Raises:
        ValueError: if the values are not what was written.
    """
    if not isinstance(values, dict) or KEY not in values:
        return values
    rest = {key: value for key, value in values.items() if key != KEY}
    if values[KEY] != (actual := digest(rest)):
        raise ValueError(
            f"its values have the checksum {actual}, but {values[KEY]} was written: it was "
            f"changed; make it again, or delete its {KEY!r} if the change is intentional"
        )
    return rest


def load(path: str | Path) -> Any:
    """Reads and checks a document written by :func:`save`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not JSON, or was changed since it was written.
    """
    return read_document(path, "a document", lambda values: values)


def read_document(
    path: str | Path,
    what: str,
    build: Callable[[dict[str, Any]], T],
    error: type[ValueError] = ValueError,
    content: bytes | None = None,
    form: tuple[str, tuple[int, ...]] | None = None,
) -> T:
    """Reads the JSON object in a file, checks it, and passes it to ``build``.

    Args:
        path: the file.
        what: what the file should contain, for messages: ``a plan``.
        build: takes the object; it may raise ValueError with a more specific message.
        error: the exception type to raise.
        content: the file's contents, if already read.
        form: the format that it must name, and the versions that are read, of which those above 1
            have a digest.

    Returns:
        The result of ``build``.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: (or ``error``) if the file contains something else; the message names the file.
    """
    try:
        values = read(path) if content is None else json.loads(content)
    except NOT_THERE as failure:
        raise error(f"{path}: not {what}: no readable JSON ({failure})") from failure
    if not isinstance(values, dict):
        raise error(f"{path}: not {what}: a {type(values).__name__} where an object should be")
    name, version = values.get("format"), values.get("version")
    if form is not None and (name != form[0] or version not in form[1]):
        raise error(
            f"{path} says {name} version {version}; this library reads {form[0]} version "
            f"{max(form[1])}: make it again"
        )
    try:
        if form is not None and version != 1 and KEY not in values:
            raise KeyError(KEY)
        return build(check(values))
    except NOT_THERE as failure:
        if type(failure) in (ValueError, error):
            raise error(f"{path}: {failure}") from failure
        lacks = "it lacks" if isinstance(failure, KeyError) else "incomplete, or changed:"
        raise error(f"{path}: not {what}: {lacks} {failure}") from failure
