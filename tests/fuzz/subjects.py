"""All subjects, in the order in which a short run meets them."""

from __future__ import annotations

from . import commands, files, loading, running, sealed
from .subject import Subject

SUBJECTS: dict[str, Subject] = {
    module.SUBJECT.name: module.SUBJECT for module in (files, loading, running, sealed, commands)
}


def warm_up() -> None:
    """Imports and compiles once what every round would do again, being a child of this process."""
    for subject in SUBJECTS.values():
        subject.round(seed=0, examples=1)
