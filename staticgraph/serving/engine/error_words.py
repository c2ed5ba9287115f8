"""What an error says of itself, where nobody else may raise instead."""

from __future__ import annotations

from staticgraph.errors import BatchFailed
from staticgraph.text.how_many import how_many


def words_of(error: BaseException) -> str:
    """The words of an error, which may be none; an error of somebody else's class that cannot say
    them (its ``__str__`` raises) ends no thread that has callers to answer."""
    try:
        return str(error)
    except BaseException as reason:
        return f"it cannot say what it is: {type(reason).__name__} in its __str__"


def first_line(error: BaseException) -> str:
    """The first line of them, empty where there are none."""
    lines = words_of(error).splitlines()
    return lines[0] if lines else ""


def batch_failed(error: BaseException, graphs: int, requests: int) -> BatchFailed:
    """What the callers of a batch get for the error of its model, which is the cause."""
    first = first_line(error) or "no message"
    failed = BatchFailed(
        f"the model failed on a batch of {how_many(graphs, 'graph')} of "
        f"{how_many(requests, 'request')}: {type(error).__name__}: {first}"
    )
    failed.__cause__ = error
    return failed
