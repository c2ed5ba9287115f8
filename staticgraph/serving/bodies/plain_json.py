"""Reads the JSON that programs send for graphs, in a compiled loop.

A molecule is some 500 small numbers, and Python's JSON reader creates an object for each. Nearly
all bodies are ``{"graphs": [{"name": [[1, 2], [3, 4]], ...}, ...]}`` with plain numbers in rows of
equal length; here these are parsed directly into arrays. Everything else, above all malformed
bodies, is left to Python's reader and its error messages. The invariant: the result is what
Python's reader would give, or None.

Numbers are integers of at most 18 digits, and decimals of at most 15 digits and a power of ten up
to 22, whose nearest float64 is one quotient or product of exact numbers (Clinger, 1990).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from staticgraph.jit import loop
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array

_WS = rb"[ \t\n\r]*"
_OPEN = re.compile(_WS.join((b"", rb"\{", rb'"graphs"', rb":", rb"\[", rb"\{", b"")))
_KEY = re.compile(rb'"([A-Za-z_][A-Za-z0-9_.]{0,99})"' + _WS + rb":" + _WS)
_COMMA = re.compile(_WS + rb"," + _WS)
_NEXT = re.compile(_WS.join((b"", rb"\}", rb",", rb"\{", b"")))
_END = re.compile(_WS.join((b"", rb"\}", rb"\]", rb"\}", b"")))
_POWERS = 10.0 ** np.arange(23)


def plain_graphs(body: bytes) -> dict[str, Any] | None:
    """Parses a body to ``{"graphs": [{name: array}, ...]}``; None if Python's reader must read it.

    Arrays are ``[rows]`` or ``[rows, columns]``, int64 if all numbers are integers, else
    float64."""
    if (opened := _OPEN.match(body)) is None:
        return None
    at, used = opened.end(), 0
    content = np.frombuffer(body, np.uint8)
    whole, real = np.empty(len(body) // 2 + 1, np.int64), np.empty(len(body) // 2 + 1, np.float64)
    graphs: list[dict[str, Array]] = [{}]
    while True:
        if (key := _KEY.match(body, at)) is None:
            return None
        name = key[1].decode()
        end, rows, columns, only_whole = _numbers(content, key.end(), whole, real, used, _POWERS)
        if end < 0 or name in graphs[-1]:
            return None
        count = rows if columns < 0 else rows * columns
        found: Any = (whole if only_whole else real)[used : used + count]
        graphs[-1][name] = found if columns < 0 else found.reshape(rows, columns)
        used += count
        if more := _COMMA.match(body, end):
            at = more.end()
        elif more := _NEXT.match(body, end):
            graphs.append({})
            at = more.end()
        else:
            return {"graphs": graphs} if _END.fullmatch(body, end) else None


# One function: with separate functions for a number, its digits and its power, bodies of 38 to
# 57 kB took 1.7 to 2.5 times as long, inlined or not; with one only for the part after the integer
# digits, decimal numbers took 7 to 12% longer (one core of a 2-core CPU, 2026-11-23).
@loop
def _numbers(
    body: Array, at: int, whole: IntArray, real: Array, used: int, powers: Array
) -> tuple[int, int, int, bool]:
    """Reads one array of numbers into ``whole`` and ``real``, from position ``used`` on.

    Returns its end in the body (-1 if it is anything else), its rows, its columns (-1 without), and
    whether all numbers are integers."""
    none = (-1, 0, 0, False)
    n, place, only_whole = len(body), used, True
    if at >= n or body[at] != 91:  # [
        return none
    at += 1
    rows, columns, depth, count = 0, -1, 1, 0
    wants = True  # a value, or a row, comes next
    while at < n:
        c = body[at]
        if c == 32 or c == 10 or c == 13 or c == 9:
            at += 1
        elif c == 91:
            if not wants or depth == 2 or (rows and columns < 0):
                return none
            depth, count = 2, 0
            at += 1
        elif c == 93:  # ]
            if wants:  # an empty row, or a comma before the end
                return none
            at += 1
            if depth == 1:
                return at, rows, columns, only_whole
            if rows and count != columns:
                return none
            columns, depth = count, 1
            rows += 1
        elif c == 44:  # ,
            if wants:
                return none
            wants = True
            at += 1
        else:
            if not wants or (depth == 1 and columns >= 0) or place >= len(whole):
                return none
            wants = False
            negative = c == 45
            if negative:
                at += 1
            first, digits, value, scale, plain = at, 0, 0, 0, True
            while at < n and 48 <= body[at] <= 57:
                value = 10 * value + (body[at] - 48)
                digits += 1
                at += 1
                if digits > 18:
                    return none
            if not digits or (digits > 1 and body[first] == 48):
                return none
            if at < n and body[at] == 46:
                plain = False
                at += 1
                first = at
                while at < n and 48 <= body[at] <= 57:
                    value = 10 * value + (body[at] - 48)
                    digits += 1
                    at += 1
                    if digits > 18:
                        return none
                scale = first - at
                if not scale:
                    return none
            if at < n and (body[at] == 101 or body[at] == 69):  # e
                plain = False
                at += 1
                down = at < n and body[at] == 45
                if at < n and (body[at] == 45 or body[at] == 43):
                    at += 1
                first, power = at, 0
                while at < n and 48 <= body[at] <= 57 and at - first < 4:
                    power = 10 * power + (body[at] - 48)
                    at += 1
                if at == first:
                    return none
                scale += -power if down else power
            if plain:
                whole[place] = -value if negative else value
                real[place] = float(-value if negative else value)
            else:
                if digits > 15 or scale > 22 or scale < -22:
                    return none
                exact = float(value)
                exact = exact * powers[scale] if scale >= 0 else exact / powers[-scale]
                real[place] = -exact if negative else exact
                only_whole = False
            place += 1
            count += 1
            if depth == 1:
                rows += 1
    return none
