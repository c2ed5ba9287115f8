"""Types of option values, and the options that several commands share.

An option is a field of a dataclass or a keyword of a command's function. Its default, its range
and, in the docstring, its description are declared there once, and cyclopts reads them from there
for the command line, ``--help`` and settings files. A value outside its range is refused in one
line before anything is read; what depends on the data (a batch larger than the data set) is left
to the library. Nothing here imports torch or numpy, so that ``--help`` is quick.

Annotations are evaluated here, since a subclass in another module has these fields too.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from staticgraph.files.atomic import is_there
from staticgraph.steps.compilation.modes import MODES
from staticgraph.text.byte_sizes import parse_bytes
from staticgraph.text.how_many import or_nearest
from staticgraph.text.progress import waiting

if TYPE_CHECKING:
    from staticgraph.store.graph_store import GraphStore

# Duplicated here since staticgraph/models imports torch and staticgraph/datasets imports numpy; a
# test compares the copies.
MODELS = ("gine", "gps", "gin", "gcn", "gat", "sage")
TASKS = ("auto", "regression", "binary", "classes")
GPUS = ("h100", "h200", "a100", "l4")
# Larger sizes overflow the 32-bit integers of slots and kernels.
MOST = 2**31 - 1
# The largest seed that both torch and NumPy accept.
MOST_SEED = 2**63 - 1
# About the largest float32: learning rates and shares are applied to parameters of that type.
LARGEST = 3.4e38
# The file extensions that matplotlib writes without further packages; without one it is a PNG.
PICTURES = ("", ".png", ".svg", ".pdf", ".jpg", ".jpeg")

DATA, MODEL, TRAINING, MACHINE, FILES = (
    Parameter(group=Group.create_ordered(name))
    for name in ("data", "model", "training", "machine", "files")
)


def value(read: Callable[[str], Any], **more: Any) -> Parameter:
    """The parameter of an option whose single value is read by a function.

    Args:
        read: returns the value of a text, or raises a ValueError with the range.
        **more: further arguments of cyclopts' ``Parameter``.
    """
    return Parameter(converter=lambda _, tokens: read(tokens[-1].value), n_tokens=1, **more)


def several(read: Callable[[str], Any]) -> Parameter:
    """The parameter of an option with one or more values."""
    return Parameter(
        converter=lambda _, tokens: tuple(read(token.value) for token in tokens),
        consume_multiple=(1, None),
        n_tokens=-1,
    )


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """A reader of whole numbers from ``least`` to ``most``."""

    def read(text: str) -> int:
        """The number in a text, which must be within the bounds."""
        # Longer numbers are outside any range, and Python refuses to parse thousands of digits.
        if not re.fullmatch(r"\s*[+-]?\d{1,40}\s*", text) or not least <= int(text) <= most:
            raise _refused(text, f"give a whole number from {least:,} to {most:,}")
        return int(text)

    return read


def number(least: float, most: float = LARGEST, *, above: bool = False) -> Callable[[str], float]:
    """A reader of finite numbers from ``least`` to ``most``; ``above`` excludes ``least``."""
    bounds = f"above {least:g}" if above else f"from {least:g}"
    bounds += "" if most == LARGEST else f" to {most:g}"

    def read(text: str) -> float:
        """The number in a text, which must be within the bounds; NaN never is."""
        try:
            result = float(text)
        except ValueError:
            result = math.nan
        # A comparison with NaN is false.
        if not (least < result <= most if above else least <= result <= most):
            raise _refused(text, f"give a number {bounds}")
        return result

    return read


def auto_or(read: Callable[[str], int]) -> Callable[[str], int | str]:
    """A reader of ``auto``, or of what another reader takes."""

    def read_or_auto(text: str) -> int | str:
        """The value of a text, or ``auto``."""
        try:
            return text if text == "auto" else read(text)
        except ValueError as error:
            raise ValueError(f"{error}, or auto") from None

    return read_or_auto


def words(pattern: str, remedy: str, names: Sequence[str] = ()) -> Callable[[str], str]:
    """A reader of one of some names, or of a text that matches a pattern as a whole.

    Args:
        pattern: the pattern.
        remedy: what the message says to give; the nearest of the names is added.
        names: the names.
    """

    def read(text: str) -> str:
        """The text."""
        if text not in names and not re.fullmatch(pattern, text):
            raise _refused(text, f"{remedy}{or_nearest(text, names)}")
        return text

    return read


def choice(*names: str) -> Parameter:
    """The parameter of an option that takes one of several names."""
    # The pattern matches no text, so that the names alone are taken.
    return value(words("(?!)", f"give one of {', '.join(names)}", names), choices=names)


def read_fanouts(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas, as in 10,10."""
    try:
        return tuple(whole()(word) for word in text.split(","))
    except ValueError:
        raise _refused(text, "give whole numbers from 1, a layer each, as in 10,10") from None


# Any text that is not blank and has no null character.
read_words: Callable[[str], str] = words(r"(?s)(?=.*\S)[^\0]+", "give a name or a path")
read_device: Callable[[str], str] = words(
    r"auto|cpu|cuda(:\d{1,3})?", "give cpu, cuda, cuda:1 (the second), or auto"
)
# A model of the zoo, or ``module:name`` of a function that builds one.
read_model: Callable[[str], str] = words(
    r"[^\s:\0]+:[^\s:\0]+",
    f"give one of {', '.join(MODELS)}, or MODULE:NAME, such as mymodule:build, for your own model",
    MODELS,
)


def read_path(
    text: str, *, folder: bool = False, written: bool = False, picture: bool = False
) -> Path:
    """The path of a file or a folder; whether one to read exists is checked when it is read.

    One that is ``written`` is refused here where that is impossible, before minutes of work: a file
    needs an existing folder, and the extension of a ``picture`` is its format (default PNG).
    """
    path = Path(read_words(text)).expanduser()
    try:
        is_there(path)
    except (OSError, ValueError) as error:  # a name that is too long or invalid
        raise _refused(text[:80], str(getattr(error, "strerror", error))) from None
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    remedy = ""
    if folder and not nearest.is_dir():
        remedy = f"{nearest} is a file; give a folder"
    elif not folder and path.is_dir():
        remedy = "that is a folder; give a file"
    elif written and not folder and not path.parent.is_dir():
        remedy = f"there is no folder {path.parent} to write it to"
    elif written and not os.access(nearest, os.W_OK):
        remedy = f"{nearest} may not be written to; choose another place"
    elif picture and path.suffix.lower() not in PICTURES:
        remedy = f"a picture's name ends in {', '.join(PICTURES[1:])}, or in nothing"
    if remedy:
        raise _refused(text, remedy)
    return path


def _refused(text: str, remedy: str) -> ValueError:
    excerpt = text if len(text) <= 80 else f"{text[:77]}..."
    return ValueError(f"{excerpt!r}: {remedy}")


WHOLE = value(whole())
SHARE = value(number(0.0, 1.0))
POSITIVE = value(number(0, above=True))
# A larger rate could overflow the optimizer's float32: Adam divides it by 1 - 0.9 at first.
RATE = value(number(0, 1e30, above=True))
# Larger widths are typing errors: with 65,536 columns, a square matrix takes 16 GiB.
WIDTH = value(whole(1, 65_536))
LAYERS = value(whole(1, 1_000))
BYTES = value(parse_bytes, metavar="SIZE")
WORDS = value(read_words)
NAMES = several(read_words)
INPUT_FILE = value(read_path, metavar="FILE")
OUTPUT_FILE = value(partial(read_path, written=True), metavar="FILE")
PICTURE_FILE = value(partial(read_path, written=True, picture=True), metavar="FILE")
FOLDER = value(partial(read_path, folder=True), metavar="DIR")
OUTPUT_FOLDER = value(partial(read_path, folder=True, written=True), metavar="DIR")

# Whole options, as several commands have them.
BatchSize = Annotated[int, WHOLE]
Seed = Annotated[int, value(whole(0, MOST_SEED))]
Device = Annotated[str, value(read_device)]
Mode = Annotated[str, choice(*MODES)]
Gpu = Annotated[str, choice(*GPUS), Parameter(name="--for")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DataOptions:
    """The options that select the data.

    Attributes:
        data: esol, tu:NAME, molnet:NAME, ogb:NAME, the folder of a store or of a PyG dataset, or a
            .npz, .pt or .csv file.
        target: columns of a CSV to predict; every column of numbers if it is left out.
        task: what the target is: numbers, yes or no (0 and 1), or classes; auto decides by the
            dtype of y, or by the cells of a CSV.
    """

    data: Annotated[str, WORDS, DATA, Parameter(metavar="SPEC")]
    target: Annotated[str | tuple[str, ...] | None, NAMES, DATA, Parameter(metavar="COLUMN")] = None
    task: Annotated[str, choice(*TASKS), DATA] = "auto"

    def open(self, seed: int = 0, progress: bool = True) -> "GraphStore":
        """Opens the data; the seed is that of a random split.

        Raises:
            DatasetUnavailable, BadGraph: as for :func:`staticgraph.datasets.open`.
        """
        from staticgraph import datasets

        with waiting(f"opening {self.data}", progress):
            return datasets.open(
                self.data, target=self.target, task=self.task, seed=seed, progress=progress
            )


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ModelOptions(DataOptions):
    """The options that select data, model and loss; sizes are those of models by name.

    Attributes:
        model: gine, gps, gin, gcn, gat, sage, or MODULE:NAME of a function that builds one, called
            with the store if it takes an argument.
        hidden: width of every layer.
        layers: number of convolutions.
        dropout: dropout between layers.
        pool: pooling over nodes.
        loss: MODULE:NAME of loss(out, batch), which returns one value per row; the loss that fits
            the target y if it is left out.
    """

    model: Annotated[str, value(read_model), MODEL, Parameter(metavar="NAME")] = "gine"
    hidden: Annotated[int, WIDTH, MODEL] = 64
    layers: Annotated[int, LAYERS, MODEL] = 4
    dropout: Annotated[float, SHARE, MODEL] = 0.0
    pool: Annotated[str, choice("mean", "add"), MODEL] = "mean"
    loss: Annotated[str | None, WORDS, MODEL, Parameter(metavar="MODULE:NAME")] = None
