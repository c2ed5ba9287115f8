"""JSON that says of itself whether it was changed.

A plan with one digit changed is still a plan, of other buckets. So a document carries the digest of
its own values (BLAKE2b over their plain JSON, in order): layout and indentation may change, a value
may not. Documents without one, of earlier versions or written by hand, are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from staticgraph.files import atomic

KEY = "checksum"


def digest(values: Any) -> str:
    """Sixteen hexadecimal digits that change with any value."""
    plain = json.dumps(values, separators=(",", ":"))
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


def save(path: str | Path, values: Mapping[str, Any], indent: int | None = 1) -> None:
    """Writes values with their digest, whole or not at all."""
    plain = json.loads(json.dumps(values))
    text = json.dumps({**plain, KEY: digest(plain)}, indent=indent)
    atomic.write_text(path, text + "\n")


def read(path: str | Path) -> Any:
    """The values of a JSON file, the digest among them; :func:`check` takes it out.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON.
    """
    try:
        return json.loads(Path(path).read_bytes())
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
            f"make it again, or delete its {KEY!r} if the change is meant"
        )
    return rest


def load(path: str | Path) -> Any:
    """What :func:`save` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, or changed since it was written.
    """
    return check(read(path))
