"""The types of option values: functions for argparse's ``type=``, each with its range.

Each option declares its range, so that a value outside it is refused in one line before anything is
read, and commands get only values in range. Nothing here reads data: errors that depend on the data
(a batch larger than the data set) are left to the library.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

from staticgraph.files.presence import is_there
from staticgraph.text.byte_sizes import parse_bytes
from staticgraph.text.nearest import or_nearest

# Duplicated here since staticgraph/models imports torch, staticgraph/datasets imports numpy, and
# --help must be quick; a test compares the copies.
MODELS = ("gine", "gps", "gin", "gcn", "gat", "sage")
TASKS = ("auto", "regression", "binary", "classes")
# The values of --data, as in docs/datasets.md.
SPECS = (
    "esol, tu:NAME, molnet:NAME, ogb:NAME, the folder of a store or of a PyG dataset, or a .npz, "
    ".pt or .csv file"
)
# Larger sizes overflow the 32-bit integers of slots and kernels.
MOST = 2**31 - 1
# The largest seed that both torch and NumPy accept.
MOST_SEED = 2**63 - 1
# About the largest float32: learning rates and shares are applied to parameters of that type.
LARGEST = 3.4e38
# Larger values are typing errors: with 65,536 columns, a square matrix takes 16 GiB.
WIDEST = 65_536
MOST_LAYERS = 1_000
# The file extensions that matplotlib writes without further packages; without one it is a PNG.
PICTURES = ("", ".png", ".svg", ".pdf", ".jpg", ".jpeg")


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """The type of whole numbers from ``least`` to ``most``."""

    def read(text: str) -> int:
        """The number in a text, which must be within the bounds."""
        # Longer numbers are outside any range, and Python refuses to parse thousands of digits.
        if not re.fullmatch(r"\s*[+-]?\d{1,40}\s*", text):
            raise _refused(text, f"give a whole number from {least:,} to {most:,}")
        if not least <= (number := int(text)) <= most:
            raise _refused(text, f"give a whole number from {least:,} to {most:,}")
        return number

    return read


def seed(text: str) -> int:
    """A seed: a whole number that is not negative."""
    return whole(0, MOST_SEED)(text)


def number(least: float, most: float = LARGEST, *, more: bool = False) -> Callable[[str], float]:
    """The type of finite numbers from ``least`` to ``most``, without ``least`` if ``more``."""
    bounds = f"above {least:g}" if more else f"from {least:g}"
    bounds += "" if most == LARGEST else f" to {most:g}"

    def read(text: str) -> float:
        """The number in a text, which must be within the bounds; NaN never is."""
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        # A comparison with NaN is false.
        if not (least < found <= most if more else least <= found <= most):
            raise _refused(text, f"give a number {bounds}")
        return found

    return read


def rate(text: str) -> float:
    """A learning rate, up to 1e30: a larger one could overflow the optimizer's float32, since Adam
    divides it by 1 - 0.9 at its first step."""
    return number(0, 1e30, more=True)(text)


def share(text: str) -> float:
    """A number from 0 to 1, both included."""
    return number(0.0, 1.0)(text)


def byte_size(text: str) -> int:
    """An amount of memory, such as 20GiB or 512M, in bytes.

    Raises:
        ArgumentTypeError: the text is not an amount of memory.
    """
    try:
        return parse_bytes(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def auto_or(kind: Callable[[str], int]) -> Callable[[str], int | str]:
    """The type of ``auto`` or a value of type ``kind``."""
    return lambda text: text if text == "auto" else kind(text)


def fanouts(text: str) -> list[int]:
    """Whole numbers separated by commas, as in 10,10."""
    try:
        return [whole()(word) for word in text.split(",")]
    except argparse.ArgumentTypeError:
        raise _refused(text, "give whole numbers from 1, a layer each, as in 10,10") from None


def device(text: str) -> str:
    """``cpu``, ``cuda``, ``cuda:N`` or ``auto``."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", text):
        raise _refused(text, "give cpu, cuda, cuda:1 (the second), or auto")
    return text


def words(text: str) -> str:
    """Any text that is not blank and has no null character."""
    if not text.strip() or "\0" in text:
        raise _refused(text, "give a name or a path")
    return text


def model(text: str) -> str:
    """A model of the zoo, or ``module:name`` of a function that builds one."""
    if text not in MODELS and not re.fullmatch(r"[^\s:\0]+:[^\s:\0]+", text):
        raise _refused(
            text,
            f"give one of {', '.join(MODELS)}, or MODULE:NAME, such as mymodule:build, for your "
            f"own model{or_nearest(text, MODELS)}",
        )
    return text


def file_to_read(text: str) -> Path:
    """The path of a file; whether it exists is checked when it is read."""
    path = _path(text)
    if path.is_dir():
        raise _refused(text, "that is a folder; give a file")
    return path


def file_to_write(text: str) -> Path:
    """The path of a file to write, in an existing folder."""
    path = _path(text)
    if path.is_dir():
        raise _refused(text, "that is a folder; give a file")
    if not path.parent.is_dir():
        raise _refused(text, f"there is no folder {path.parent} to write it to")
    _refuse_closed(text, path)
    return path


def picture_to_write(text: str) -> Path:
    """The path of a picture in an existing folder; its extension gives the format (default PNG)."""
    path = file_to_write(text)
    if path.suffix.lower() not in PICTURES:
        raise _refused(text, f"a picture's name ends in {', '.join(PICTURES[1:])}, or in nothing")
    return path


def folder(text: str) -> Path:
    """The path of a folder, which may not exist yet."""
    path = _path(text)
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise _refused(text, f"{nearest} is a file; give a folder")
    return path


def folder_to_write(text: str) -> Path:
    """The path of a folder that can be written to or created."""
    path = folder(text)
    _refuse_closed(text, path)
    return path


def _refuse_closed(text: str, path: Path) -> None:
    """Refuses a path that is not writable, before minutes of work."""
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not os.access(nearest, os.W_OK):
        raise _refused(text, f"{nearest} may not be written to; choose another place")


def _path(text: str) -> Path:
    path = Path(words(text)).expanduser()
    try:
        is_there(path)
    except (OSError, ValueError) as error:  # a name that is too long or invalid
        raise _refused(text[:80], str(getattr(error, "strerror", error))) from None
    return path


def _refused(text: str, remedy: str) -> argparse.ArgumentTypeError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return argparse.ArgumentTypeError(f"{shown!r}: {remedy}")
