"""The error for an invalid request body."""

from __future__ import annotations


class BadBody(ValueError):
    """A request body is invalid; the message has one line.

    Attributes:
        status: 400 if the body cannot be read, 408 if it takes too long, 413 if it is too large,
            415 if its type is unknown, 422 if it can be read but the model cannot take its graphs.
    """

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message.splitlines()[0][:500] if message else "no message")
        self.status = status
