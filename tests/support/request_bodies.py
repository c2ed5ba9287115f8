"""Request bodies for a server: molecules as SMILES, as graphs and as arrays, and invalid bodies."""

from __future__ import annotations

import gzip
import io
import json

import numpy as np
import pytest
from safetensors.numpy import save

from staticgraph.datasets.smiles import molecule_of

pytest.importorskip("rdkit", reason="needs the extra smiles")

SMILES = ["CCO", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O", "C"]
JSON = {"Content-Type": "application/json"}
ARRAYS = {"Content-Type": "application/octet-stream"}


def graph_of(smiles: str) -> dict:
    atoms, edges, bonds = molecule_of(smiles)
    return {"x": atoms.tolist(), "edge_index": edges.tolist(), "edge_attr": bonds.tolist()}


def arrays_of(graphs: list[dict]) -> dict:
    arrays = [{k: np.array(v, np.int64) for k, v in g.items()} for g in graphs]
    return {
        "num_nodes": np.array([len(a["x"]) for a in arrays]),
        "num_edges": np.array([len(a["edge_attr"]) for a in arrays]),
        "x": np.concatenate([a["x"] for a in arrays]),
        "edge_attr": np.concatenate([a["edge_attr"].reshape(-1, 3) for a in arrays]),
        "edge_index": np.concatenate([a["edge_index"].reshape(2, -1) for a in arrays], axis=1),
    }


ETHANOL = graph_of("CCO")


def changed(**values) -> bytes:
    return json.dumps({"graphs": [{**ETHANOL, **values}]}).encode()


def claiming(shape: list[int], dtype: str = "I64") -> bytes:
    """Returns safetensors of one array whose header says another shape than its eight bytes."""
    array = {"dtype": dtype, "shape": shape, "data_offsets": [0, 8]}
    header = json.dumps({"x": array}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


def with_arrays(**changed: np.ndarray) -> bytes:
    return save({**arrays_of([ETHANOL]), **changed})


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


LONG_CHAIN = "C" * 700
HOSTILE = {
    "nothing": (b"", JSON, 400, "no JSON"),
    "no JSON": (b"{", JSON, 400, "no JSON"),
    "not text": (b"\xff\xfe\x00", JSON, 400, "no JSON"),
    "not UTF-8": (b'{"smiles": ["\xe9"]}', JSON, 400, "no JSON in UTF-8"),
    "deep": (b"[" * 90_000, JSON, 422, "Expected `object`, got `array`"),
    "deep inside": (b'{"graphs": [{"y": ' + b"[" * 90_000, JSON, 422, "recursion"),
    "a long number": (
        b'{"graphs": [' + b"9" * 9000 + b"]}", JSON, 422, "out of range - at `$.graphs[0]`"
    ),
    "NaN": (b'{"graphs": [{"x": [[NaN]]}]}', JSON, 400, "no JSON"),
    "texts among numbers": (
        changed(x=[[0] * 8 + ["a"]] * 3), JSON, 422, "got `str` - at `$.graphs[0].x[0][8]`"
    ),
    "numbers and lists": (changed(x=[[0] * 9, 1, [0] * 9]), JSON, 422, "at `$.graphs[0].x[1]`"),
    "a list": (b"[]", JSON, 422, "Expected `object`, got `array`"),
    "neither": (b"{}", JSON, 422, "must be"),
    "both": (b'{"graphs": [], "smiles": []}', JSON, 422, "must be"),
    "no list": (b'{"graphs": {"0": 1}}', JSON, 422, "got `object` - at `$.graphs`"),
    "no graph": (b'{"graphs": []}', JSON, 422, "no graph"),
    "many graphs": (json.dumps({"smiles": ["C"] * 21}).encode(), JSON, 413, "at most 20"),
    "a large body": (b" " * 100_001, JSON, 413, "more than 100,000 bytes"),
    "graph is a number": (b'{"graphs": [1]}', JSON, 422, "at `$.graphs[0]`"),
    "a field lacks": (b'{"graphs": [{"x": []}]}', JSON, 422, "missing required field `edge_attr`"),
    "an unknown field": (changed(z=[1]), JSON, 422, "unknown field `z` - at `$.graphs[0]`"),
    "null": (changed(x=None), JSON, 422, "got `null` - at `$.graphs[0].x`"),
    "ragged rows": (changed(x=[[1], [1, 2]]), JSON, 422, "graph 0: 'x' is no array of numbers"),
    "a fraction": (changed(x=[[0.5] * 9] * 3), JSON, 422, "Expected `int`, got `float`"),
    "beyond int64": (changed(x=[[2**70] * 9] * 3), JSON, 422, "'x' is no array of numbers"),
    "beyond every float": (changed(x=[[10**400] * 9] * 3), JSON, 422, "no array of numbers"),
    "another width": (changed(x=[[0] * 8] * 3), JSON, 422, "shape [3, 8]"),
    "too few rows": (changed(edge_attr=ETHANOL["edge_attr"][:2]), JSON, 422, "has 2 rows"),
    "an edge outside": (changed(edge_index=[[0] * 4, [3] * 4]), JSON, 422, "outside of 0 to 2"),
    "an edge below": (changed(edge_index=[[0] * 4, [-1] * 4]), JSON, 422, "outside"),
    "edges of three ends": (changed(edge_index=[[0], [0], [0]]), JSON, 422, "of length 2"),
    "uneven ends": (changed(edge_index=[[0], [0, 1]]), JSON, 422, "'edge_index' is no array"),
    "num_nodes is text": (changed(num_nodes="3"), JSON, 422, "at `$.graphs[0].num_nodes`"),
    "num_nodes is huge": (changed(num_nodes=10**18), JSON, 422, "cannot be"),
    "an unknown category": (changed(x=[[999] * 9] * 3), JSON, 422, "has 999 in column 0"),
    "a negative category": (changed(x=[[-1] * 9] * 3), JSON, 422, "has -1 in column 0"),
    "no SMILES": (b'{"smiles": ["not a molecule"]}', JSON, 422, "RDKit cannot read"),
    "an empty SMILES": (b'{"smiles": [" "]}', JSON, 422, "is empty"),
    "SMILES is a number": (b'{"smiles": [5]}', JSON, 422, "got `int` - at `$.smiles[0]`"),
    "half a character": (b'{"smiles": ["\\ud800"]}', JSON, 400, "no JSON"),
    "a long SMILES": (json.dumps({"smiles": ["C" * 5000]}).encode(), JSON, 422, "more than 4000"),
    "a large molecule": (json.dumps({"smiles": [LONG_CHAIN]}).encode(), JSON, 413, "700 nodes"),
    "packed": (
        gzip.compress(changed()), {**JSON, "Content-Encoding": "gzip"}, 415, "(Content-Encoding: gz"
    ),
    "another type": (b"x", {"Content-Type": "text/xml"}, 415, "text/xml"),
    "no safetensors": (b"PK not", ARRAYS, 400, "no safetensors"),
    "cut safetensors": (with_arrays()[:-30], ARRAYS, 400, "no safetensors"),
    "more than its arrays": (with_arrays() + b"1234", ARRAYS, 400, "no safetensors"),
    "a pickle": (pickled(), ARRAYS, 400, "no safetensors"),
    "a huge header": (b"\xff" * 16, ARRAYS, 400, "no safetensors"),
    "a huge shape": (claiming([10**15]), ARRAYS, 400, "no safetensors"),
    "a shape beyond its bytes": (claiming([2**61, 8]), ARRAYS, 400, "no safetensors"),
    "a dtype that NumPy lacks": (claiming([4], "BF16"), ARRAYS, 400, "BF16"),
    "an array lacks": (save({"x": np.zeros((1, 9), int)}), ARRAYS, 422, "lack edge_attr"),
    "a negative number": (with_arrays(num_nodes=np.array([-3])), ARRAYS, 422, "cannot be"),
    "another number of rows": (
        with_arrays(num_nodes=np.array([4])), ARRAYS, 422, "'x' has not 4 rows"
    ),
    "scalars": (
        with_arrays(num_nodes=np.array(3), num_edges=np.array(4)), ARRAYS, 422,
        "num_nodes has shape []",
    ),
}  # fmt: skip
