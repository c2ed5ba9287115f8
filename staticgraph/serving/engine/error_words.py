"""The message of an error, read without raising another one."""

from __future__ import annotations

from staticgraph.errors import BatchFailed
from staticgraph.text.how_many import how_many


def words_of(error: BaseException) -> str:
    """The message of an error, possibly empty.

    If the ``__str__`` of a foreign error class raises, a substitute is returned, so that it does
    not end a thread that has callers to answer."""
    try:
        return str(error)
    except BaseException as reason:
        return f"it cannot say what it is: {type(reason).__name__} in its __str__"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; empty if there is none."""
    lines = words_of(error).splitlines()
    return lines[0] if lines else ""


def batch_failed(error: BaseException, graphs: int, requests: int) -> BatchFailed:
    """The error that the callers of a batch get if the model failed; ``error`` is its cause."""
    first = first_line(error) or "no message"
    failed = BatchFailed(
        f"the model failed on a batch of {how_many(graphs, 'graph')} of "
        f"{how_many(requests, 'request')}: {type(error).__name__}: {first}"
    )
    failed.__cause__ = error
    return failed
