"""All subjects."""

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
