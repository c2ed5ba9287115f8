"""What a data set is, in sixteen digits: to know it again when a run goes on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from staticgraph.files.checksum import crc32_of_array
from staticgraph.store.graph_columns import GraphColumns


def digest_of(store: GraphColumns) -> str:
    """Sixteen hexadecimal digits that change with any feature, label, edge or split, and not with
    the store's name or place, nor with objects on the host. Reads every other array once."""
    store.verify()
    schema = replace(store.schema, molecules=False)  # says what else may be a graph, not what is
    hashed = hashlib.sha256(json.dumps(schema.to_dict()).encode())
    for name, array in sorted(store.arrays().items()):
        if name.startswith("object"):
            continue
        said = (name, array.dtype.str, array.shape, crc32_of_array(array))
        hashed.update(repr(said).encode())
    return hashed.hexdigest()[:16]
