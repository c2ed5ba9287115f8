"""JSON read by a compiled loop: it gives what Python's parser gives, or nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from staticgraph.serving.bodies.plain_json import plain_graphs

NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20),
    st.integers(-5, 200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-1000, 1000, places=4, allow_nan=False).map(float),
)
ROWS = st.integers(0, 3).flatmap(
    lambda width: st.lists(st.lists(NUMBERS, min_size=width, max_size=width), max_size=5)
)
ANYTHING = st.one_of(ROWS, st.lists(NUMBERS, max_size=5), NUMBERS, st.none(), st.text(max_size=3))
GRAPHS = st.lists(
    st.dictionaries(st.sampled_from(["x", "edge_index", "y.z", "é"]), ANYTHING), max_size=3
)


def body_of(graphs: object, **style) -> bytes:
    return json.dumps({"graphs": graphs}, **style).encode()


def same(found: np.ndarray, expected: object) -> None:
    wanted = np.asarray(expected)
    assert found.dtype == wanted.dtype, (found, wanted)
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes(), "to the last bit"


def check(body: bytes) -> bool:
    """Whether the loop read the body; what it read must equal the result of Python's parser."""
    found = plain_graphs(body)
    if found is None:
        return False
    expected = json.loads(body)
    assert found.keys() == expected.keys() == {"graphs"}
    for one, other in zip(found["graphs"], expected["graphs"], strict=True):
        assert one.keys() == other.keys()
        for name, values in one.items():
            same(values, other[name])
    return True


@settings(max_examples=300, deadline=None)
@given(graphs=GRAPHS, indent=st.sampled_from([None, 0, 3]))
@example([{"x": [[1e22, -0.0], [0.1, 123456789012345.0]]}], None)
@example([{"x": [1e-7, 1.5e300]}], None)
def test_what_is_read_is_what_pythons_reader_makes_of_it(graphs, indent):
    check(body_of(graphs, indent=indent))


@settings(max_examples=500, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 70), st.sampled_from(list(b'[]{},:"0123.eE+- xN'))),
                    max_size=4),
    cut=st.integers(0, 80),
)  # fmt: skip
def test_changed_text_is_read_as_python_does_or_not_at_all(places, cut):
    body = bytearray(body_of([{"x": [[1, 2], [3, -4]], "y": [0.5, 10]}, {"x": [[1, 1]]}])[:cut])
    for place, value in places:
        if place < len(body):
            body[place] = value
    check(bytes(body))  # json.loads fails this test if Python rejects a body that was read


READ = [
    b'{"graphs": [{"x": [[1, 2], [3, 4]], "edge_index": [[0], [1]], "u": [0.25, -1e3]}]}',
    b' {\n"graphs" :[ {"x":[ [1 ,2]\t] } , {"x":[[5,6]],"u":[1]}]\r\n} ',
    b'{"graphs": [{"x": [-0, 0, 999999999999999999]}]}',
]
NOT_READ = {
    "an empty row": b'{"graphs": [{"x": [[]]}]}',
    "an empty array": b'{"graphs": [{"x": []}]}',
    "rows of two lengths": b'{"graphs": [{"x": [[1], [1, 2]]}]}',
    "rows and numbers": b'{"graphs": [{"x": [[1], 2]}]}',
    "numbers and rows": b'{"graphs": [{"x": [2, [1]]}]}',
    "three levels": b'{"graphs": [{"x": [[[1]]]}]}',
    "a name twice": b'{"graphs": [{"x": [1], "x": [2]}]}',
    "a leading zero": b'{"graphs": [{"x": [01]}]}',
    "a plus": b'{"graphs": [{"x": [+1]}]}',
    "a point at the end": b'{"graphs": [{"x": [1.]}]}',
    "a point at the start": b'{"graphs": [{"x": [.5]}]}',
    "no exponent": b'{"graphs": [{"x": [1e]}]}',
    "a comma too many": b'{"graphs": [{"x": [1,]}]}',
    "two commas": b'{"graphs": [{"x": [1,,2]}]}',
    "no comma": b'{"graphs": [{"x": [1 2]}]}',
    "two numbers in one": b'{"graphs": [{"x": [1-2]}]}',
    "19 digits": b'{"graphs": [{"x": [9223372036854775807]}]}',
    "16 digits": b'{"graphs": [{"x": [0.1234567890123456]}]}',
    "a large power": b'{"graphs": [{"x": [1e23]}]}',
    "truth": b'{"graphs": [{"x": [true]}]}',
    "NaN": b'{"graphs": [{"x": [NaN]}]}',
    "more after it": b'{"graphs": [{"x": [1]}]} x',
    "cut short": b'{"graphs": [{"x": [1',
    "an escaped name": b'{"graphs": [{"\\u0078": [1]}]}',
    "a vertical tab": b'{"graphs":\x0b[{"x": [1]}]}',
    "more keys": b'{"graphs": [{"x": [1]}], "smiles": []}',
    "no graph": b'{"graphs": []}',
    "nothing": b"",
}


@pytest.mark.parametrize("body", READ)
def test_what_programs_send_is_read(body):
    assert check(body)


@pytest.mark.parametrize("what", NOT_READ)
def test_anything_else_is_left_to_pythons_reader(what):
    assert plain_graphs(NOT_READ[what]) is None
