"""What an error says of itself, where nobody else may raise instead."""

from __future__ import annotations


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
