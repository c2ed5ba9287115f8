"""All subjects, in the order in which a short run goes through them."""

from __future__ import annotations

from . import commands, files, forwards, loading, running, sealed
from .subject import Subject

SUBJECTS: dict[str, Subject] = {
    subject.name: subject
    for subject in (
        files.SUBJECT,
        loading.SUBJECT,
        running.SUBJECT,
        forwards.SUBJECT,
        sealed.SUBJECT,
        commands.SUBJECT,
        running.COMPILED,
    )
}


def warm_up() -> None:
    """Does the imports and compilations once that every round, a child process, would repeat.
    The ``compiled`` subject is left out: it has a cache on disk, and takes too long."""
    for subject in SUBJECTS.values():
        if subject is not running.COMPILED:
            subject.round(seed=0, examples=1)
