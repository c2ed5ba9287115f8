"""All subjects."""

from __future__ import annotations

from . import forwards, loading, running
from .subject import Subject

SUBJECTS: dict[str, Subject] = {
    subject.name: subject
    for subject in (
        loading.SUBJECT,
        running.SUBJECT,
        forwards.SUBJECT,
        running.COMPILED,
    )
}
