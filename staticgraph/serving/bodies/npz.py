"""Reads the arrays of an npz from an untrusted caller: nothing is unpickled, and every declared
size is checked against the actual bytes before it is used."""

from __future__ import annotations

import io
import math
import zipfile

import numpy as np

from staticgraph.serving.bodies.bad_body import BadBody
from staticgraph.store.columns import Array
from staticgraph.text.how_many import how_many

# A graph has a few arrays; each takes time to open, and a body has room for a hundred thousand.
MOST_ARRAYS = 256
# The methods of ``numpy.savez`` and ``numpy.savez_compressed``. Other methods allocate as much
# memory as the archive declares.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def arrays_of(body: bytes, most_bytes: int) -> dict[str, Array]:
    """Reads the arrays, each by its own header, which must agree with its bytes.

    Args:
        body: the body of a request.
        most_bytes: the most bytes that the arrays may have uncompressed.

    Raises:
        BadBody: the body is not an npz of numbers, or has too many arrays or bytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            if len(archive.infolist()) > MOST_ARRAYS:
                raise BadBody(f"the npz has {how_many(len(archive.infolist()), 'array')}", 422)
            if any(entry.compress_type not in METHODS for entry in archive.infolist()):
                raise BadBody("the npz is packed otherwise than NumPy packs one", 422)
            names = [entry.filename.removesuffix(".npy") for entry in archive.infolist()]
            if len({*names}) < len(names):
                again = next(name for name in names if names.count(name) > 1)
                raise BadBody(f"the npz has array {again[:100]!r} twice", 422)
            inflated = sum(max(0, entry.file_size) for entry in archive.infolist())
            if inflated > most_bytes:
                size = how_many(inflated, "byte")
                raise BadBody(f"the npz unfolds to {size}, more than {most_bytes:,}", 413)
            entries = dict(zip(names, map(archive.read, archive.infolist()), strict=True))
    except BadBody:
        raise
    except Exception as error:  # zipfile raises whatever the bytes happen to lead to
        raise BadBody(f"the body is no npz ({type(error).__name__}: {error})", 400) from None
    return {name: _npy(name, content) for name, content in entries.items()}


def _npy(name: str, content: bytes) -> Array:
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}
        read[2, 0] = np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read[version](file)
        if dtype.kind not in "biuf" or min(shape, default=0) < 0 or dtype.hasobject:
            raise ValueError(f"{dtype} of shape {shape}")
        if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise ValueError(f"shape {shape} is not that of its bytes")
        flat = np.frombuffer(content, dtype, offset=file.tell())
        return flat.reshape(shape, order="F" if by_column else "C")
    except Exception as error:  # the header is read as a Python literal
        raise BadBody(f"array {name!r} cannot be read ({type(error).__name__})", 400) from None
