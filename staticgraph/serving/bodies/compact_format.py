"""A binary format for graphs without a Python object per graph: a header and one block per array.

Everything is little-endian. The header is ``SGF1`` (4 bytes), the number of graphs (uint32), the
number of arrays (uint32) and four zero bytes; then for each array, in the order of :func:`names`,
the code of its dtype (uint32, :data:`CODES`) and its number of elements (uint32). The arrays
follow, each aligned to a multiple of 8 bytes, in C order: ``num_nodes [n]``, ``num_edges [n]``,
``edge_index [2, sum e]`` numbered within each graph, then each field of the data except its target.

Arrays may be sent in small dtypes, since the receiver widens them: a molecule of HIV takes some 500
bytes. Booleans are sent as uint8.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from staticgraph.schema import EDGE_INDEX, Schema
from staticgraph.serving.bodies.flat_graphs import FlatGraphs, fields_of
from staticgraph.store.columns import Array
from staticgraph.text.how_many import how_many

MAGIC = b"SGF1"
CONTENT_TYPE = "application/x-staticgraph"
CODES = {
    code: np.dtype(name).newbyteorder("<")
    for code, name in enumerate(
        ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
         "float16", "float32", "float64")
    )
}  # fmt: skip
_CODE_OF = {dtype: code for code, dtype in CODES.items()}
_HEADER, _ARRAY = struct.Struct("<4sIII"), struct.Struct("<II")
ALIGNMENT = 8


def names(schema: Schema) -> list[str]:
    """The names of the arrays, in order."""
    return ["num_nodes", "num_edges", EDGE_INDEX, *(item.name for item in fields_of(schema))]


def encode(arrays: Mapping[str, Array], schema: Schema) -> bytes:
    """Encodes graphs whose arrays are given by name.

    Raises:
        KeyError: an array is missing.
        TypeError: an array's dtype is neither bool nor in :data:`CODES`.
    """
    found = []
    for name in names(schema):
        array = np.ascontiguousarray(arrays[name])
        array = array.view(np.uint8) if array.dtype == bool else array
        if array.dtype.newbyteorder("<") not in _CODE_OF:
            raise TypeError(f"{name!r} is {array.dtype}; send whole numbers, floats or bool")
        found.append(array.astype(array.dtype.newbyteorder("<"), copy=False))
    pieces = [_HEADER.pack(MAGIC, len(found[0]), len(found), 0)]
    pieces += [_ARRAY.pack(_CODE_OF[array.dtype], array.size) for array in found]
    length = _HEADER.size + _ARRAY.size * len(found)
    for array in found:
        pieces += [bytes(-length % ALIGNMENT), array.tobytes()]
        length += -length % ALIGNMENT + array.nbytes
    return b"".join(pieces)


def encode_graphs(graphs: FlatGraphs, schema: Schema) -> bytes:
    """Encodes graphs."""
    counts = {"num_nodes": graphs.num_nodes, "num_edges": graphs.num_edges}
    return encode({**counts, EDGE_INDEX: graphs.edge_index, **graphs.columns}, schema)


def decode(body: bytes | bytearray | memoryview, wanted: Sequence[str]) -> dict[str, Array]:
    """Decodes the arrays by name, flat, in the dtypes they were sent in, as views of ``body``.

    Args:
        body: untrusted bytes, in the format of :func:`encode`.
        wanted: :func:`names` of the schema.

    Raises:
        ValueError: the bytes are not in this format; every size in the header is checked against
            the length of the body.
    """
    if len(body) < _HEADER.size + _ARRAY.size * len(wanted) or body[:4] != MAGIC:
        raise ValueError(f"it does not begin with {MAGIC.decode()} and a header")
    _, graphs, count, zero = _HEADER.unpack_from(body)
    if count != len(wanted) or zero:
        raise ValueError(f"its header has {how_many(count, 'array')}; they are {', '.join(wanted)}")
    found, at = {}, _HEADER.size + _ARRAY.size * count
    for number, name in enumerate(wanted):
        code, size = _ARRAY.unpack_from(body, _HEADER.size + _ARRAY.size * number)
        dtype = CODES.get(code)
        at += -at % ALIGNMENT
        if dtype is None or at + size * dtype.itemsize > len(body):
            raise ValueError(f"array {name!r} has an unknown dtype, or ends beyond the body")
        found[name] = np.frombuffer(body, dtype, size, at)
        at += size * dtype.itemsize
    if at != len(body):
        raise ValueError(f"it has {how_many(len(body) - at, 'byte')} more than its arrays")
    if len(found["num_nodes"]) != graphs:
        raise ValueError(
            f"its header has {how_many(graphs, 'graph')}, its num_nodes {len(found['num_nodes'])}"
        )
    return found


def decode_graphs(body: bytes | bytearray | memoryview, schema: Schema) -> FlatGraphs:
    """Decodes the output of :func:`encode_graphs` from a trusted process, without checks."""
    arrays = decode(body, names(schema))
    counts = arrays["num_nodes"], arrays["num_edges"]
    rows = {"node": int(counts[0].sum()), "edge": int(counts[1].sum()), "graph": len(counts[0])}
    columns = {}
    for item in fields_of(schema):
        shape = rows[item.level] * (item.rows if item.level == "graph" else 1), *item.shape
        columns[item.name] = arrays[item.name].reshape(shape).astype(item.dtype, copy=False)
    return FlatGraphs(*counts, arrays[EDGE_INDEX].reshape(2, -1), columns)
