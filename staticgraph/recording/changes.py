"""What in a model is no longer as it was recorded, and how a message says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# How many changes a message lists.
NAMED = 6


class Change(NamedTuple):
    """One difference from what was recorded.

    Attributes:
        where: the path of a module, and what in it has changed.
        before, after: the values as text.
        attribute: whether it is an attribute, which perhaps no forward reads.
    """

    where: str
    before: str
    after: str
    attribute: bool = False

    def __str__(self) -> str:
        return f"{self.where} was {self.before}, is {self.after}"


def told(changes: Sequence[Change], remedy: str) -> str:
    """Returns changes as the end of a message."""
    named = "; ".join(map(str, changes[:NAMED]))
    more = f"; and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    private = (
        ". An attribute that no forward reads is not looked at where its name begins with an "
        "underscore"
        if any(change.attribute for change in changes)
        else ""
    )
    return (
        "the model is not as it was recorded, and a replay would go on as it was: "
        f"{named}{more}. Undo it, change it before the recording, or {remedy}{private}"
    )
