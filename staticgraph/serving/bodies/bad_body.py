"""What is wrong with a body, in one line."""

from __future__ import annotations


class BadBody(ValueError):
    """A body that is none of what is understood.

    Attributes:
        status: 400 where it cannot be read, 413 where it is too large, 415 where its type is not
            known, 422 where it can be read and says what no model takes.
    """

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message.splitlines()[0][:500] if message else "no message")
        self.status = status
