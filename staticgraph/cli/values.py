"""What an option may be: functions for argparse's ``type=``, each with its range.

A range stands with the option that has it, so that a value outside is refused in one line before
anything is read, and what a command is given is in its range. Nothing here looks at data: what
depends on them (a batch larger than the data set) is the library's to refuse.
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

# These stand here, too, since staticgraph/models imports torch, staticgraph/datasets numpy, and
# --help must be quick; a test compares them.
MODELS = ("gine", "gps", "gin", "gcn", "gat", "sage")
TASKS = ("auto", "regression", "binary", "classes")
# What --data takes, as docs/datasets.md has it.
SPECS = (
    "esol, tu:NAME, molnet:NAME, ogb:NAME, the folder of a store or of a PyG dataset, or a .npz, "
    ".pt or .csv file"
)
# Sizes beyond this overflow the 32-bit numbers of slots and kernels.
MOST = 2**31 - 1
# What torch and NumPy both take.
MOST_SEED = 2**63 - 1
# The largest float32: learning rates and shares meet parameters of that type.
LARGEST = 3.4e38
# Beyond these a model is a slip of the finger: 65,536 columns take 16 GiB a square matrix.
WIDEST = 65_536
MOST_LAYERS = 1_000
# Endings of pictures that matplotlib writes by itself; without one it is a PNG.
PICTURES = ("", ".png", ".svg", ".pdf", ".jpg", ".jpeg")


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``."""

    def read(text: str) -> int:
        """The number that a text says, within the bounds."""
        # Longer ones are outside any range, and Python refuses to read thousands of digits.
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
    """A finite number from ``least``, or ``more`` than that, to ``most``."""
    bounds = f"above {least:g}" if more else f"from {least:g}"
    bounds += "" if most == LARGEST else f" to {most:g}"

    def read(text: str) -> float:
        """The number that a text says, within the bounds; NaN is in none."""
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
    """A learning rate. A diverging one is taken; one that overflows an optimizer's float32 is not:
    Adam divides it by 1 - 0.9 at its first step."""
    return number(0, 1e30, more=True)(text)


def share(text: str) -> float:
    """From 0 to 1, both included."""
    return number(0.0, 1.0)(text)


def byte_size(text: str) -> int:
    """An amount of memory, such as 20GiB or 512M, in bytes.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        return parse_bytes(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def auto_or(kind: Callable[[str], int]) -> Callable[[str], int | str]:
    """``auto``, or what ``kind`` takes."""
    return lambda text: text if text == "auto" else kind(text)


def fanouts(text: str) -> list[int]:
    """Whole numbers with commas between them, as in 10,10."""
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
    """Anything but nothing."""
    if not text.strip() or "\0" in text:
        raise _refused(text, "give a name or a path")
    return text


def model(text: str) -> str:
    """A model of the zoo, or ``module:name``, which builds one."""
    if text not in MODELS and not re.fullmatch(r"[^\s:\0]+:[^\s:\0]+", text):
        raise _refused(
            text,
            f"give one of {', '.join(MODELS)}, or MODULE:NAME, such as mymodule:build, for your "
            f"own model{or_nearest(text, MODELS)}",
        )
    return text


def file_to_read(text: str) -> Path:
    """The path of a file; whether it is there is found when it is read."""
    path = _path(text)
    if path.is_dir():
        raise _refused(text, "that is a folder; give a file")
    return path


def file_to_write(text: str) -> Path:
    """The path of a file in a folder that is there."""
    path = _path(text)
    if path.is_dir():
        raise _refused(text, "that is a folder; give a file")
    if not path.parent.is_dir():
        raise _refused(text, f"there is no folder {path.parent} to write it to")
    _refuse_closed(text, path)
    return path


def picture_to_write(text: str) -> Path:
    """The path of a picture, in a folder that is there; its ending says the format, PNG without."""
    path = file_to_write(text)
    if path.suffix.lower() not in PICTURES:
        raise _refused(text, f"a picture's name ends in {', '.join(PICTURES[1:])}, or in nothing")
    return path


def folder(text: str) -> Path:
    """The path of a folder, there or to be made."""
    path = _path(text)
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise _refused(text, f"{nearest} is a file; give a folder")
    return path


def folder_to_write(text: str) -> Path:
    """The path of a folder that can be written to, or made."""
    path = folder(text)
    _refuse_closed(text, path)
    return path


def _refuse_closed(text: str, path: Path) -> None:
    """Refuses what may not be written, before minutes of work for it."""
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not os.access(nearest, os.W_OK):
        raise _refused(text, f"{nearest} may not be written to; choose another place")


def _path(text: str) -> Path:
    path = Path(words(text)).expanduser()
    try:
        is_there(path)
    except (OSError, ValueError) as error:  # a name that is too long, or that no system takes
        raise _refused(text[:80], str(getattr(error, "strerror", error))) from None
    return path


def _refused(text: str, remedy: str) -> argparse.ArgumentTypeError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return argparse.ArgumentTypeError(f"{shown!r}: {remedy}")
