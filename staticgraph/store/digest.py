"""A 16-digit digest of a data set, to recognise it when a run resumes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from staticgraph.files.checksum import crc32_of_array
from staticgraph.store.graph_columns import GraphColumns


def digest_of(store: GraphColumns) -> str:
    """Returns sixteen hexadecimal digits that change with any feature, label, edge or split.

    The store's name and location and the objects on the host do not affect them. Reads every other
    array once.
    """
    store.verify()
    schema = replace(store.schema, molecules=False)  # not a property of the data
    hashed = hashlib.sha256(json.dumps(schema.to_dict()).encode())
    for name, array in sorted(store.arrays().items()):
        if name.startswith("object"):
            continue
        said = (name, array.dtype.str, array.shape, crc32_of_array(array))
        hashed.update(repr(said).encode())
    return hashed.hexdigest()[:16]
