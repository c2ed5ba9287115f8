"""JSON that says of itself whether it was changed.

A plan with one digit changed is still a plan, of other buckets. So a document carries the digest of
its own values (BLAKE2b over their plain JSON, in order): layout and indentation may change, a value
may not. Documents without one, of earlier versions or written by hand, are taken as they are.

One may also have been cut short, or be another file altogether. Each reader knows what it needs;
whatever goes wrong while it looks for that is made one error here, which names the file and what it
should have been.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from staticgraph.files import atomic

T = TypeVar("T")

KEY = "checksum"
# What looking for a key, a number or a list raises where something else stands.
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
    """Sixteen hexadecimal digits that change with any value."""
    plain = json.dumps(values, separators=(",", ":"))
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


def save(path: str | Path, values: Mapping[str, Any], indent: int | None = 1) -> None:
    """Writes values with their digest, whole or not at all."""
    plain = json.loads(json.dumps(values))
    text = json.dumps({**plain, KEY: digest(plain)}, indent=indent)
    atomic.write_text(path, text + "\n")


def read(path: str | Path, content: bytes | None = None) -> Any:
    """The values of a JSON file, the digest among them; :func:`check` takes it out.

    Args:
        path: the file.
        content: of it, where it was read already.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON.
    """
    try:
        return json.loads(Path(path).expanduser().read_bytes() if content is None else content)
    except RecursionError:
        raise ValueError("JSON within JSON without an end") from None


def check(values: Any) -> Any:
    """The values without their digest.

    Raises:
        ValueError: they are not what was written.
    """
    if not isinstance(values, dict) or KEY not in values:
        return values
    rest = {key: value for key, value in values.items() if key != KEY}
    if values[KEY] != (found := digest(rest)):
        raise ValueError(
            f"its values have the checksum {found}, but {values[KEY]} was written: it was changed; "
            f"make it again, or delete its {KEY!r} if the change is intentional"
        )
    return rest


def load(path: str | Path) -> Any:
    """What :func:`save` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, or changed since it was written.
    """
    return check(read(path))


def read_document(
    path: str | Path,
    what: str,
    build: Callable[[dict[str, Any]], T],
    error: type[ValueError] = ValueError,
    content: bytes | None = None,
) -> T:
    """What ``build`` makes of the JSON object in a file.

    Args:
        path: the file.
        what: it should hold, for the message: ``a plan``.
        build: takes the object; raises ValueError with words of its own where it knows better.
        error: the type to raise.
        content: of the file, where it was read already.

    Raises:
        FileNotFoundError: no such file.
        ValueError: (or ``error``) it holds something else; the message names the file.
    """
    try:
        values = read(path, content)
    except NOT_THERE as failure:
        raise error(f"{path}: not {what}: no readable JSON ({failure})") from failure
    if not isinstance(values, dict):
        raise error(f"{path}: not {what}: a JSON {_kind(values)} where an object should be")
    try:
        return build(check(values))
    except NOT_THERE as failure:
        said = str(failure) if type(failure) in (ValueError, error) else None
        raise error(f"{path}: {said or f'not {what}: {missing(failure)}'}") from failure


def missing(failure: Exception) -> str:
    """What reading a document stumbled over, in words."""
    if isinstance(failure, KeyError):
        return f"it lacks {failure}"
    return f"incomplete, or another thing in a place ({failure})"


def _kind(value: Any) -> str:
    names = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
