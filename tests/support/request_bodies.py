"""Request bodies for a server: molecules as SMILES, as graphs and as arrays, and invalid bodies."""

from __future__ import annotations

import gzip
import io
import json
import warnings
import zipfile

import numpy as np
import pytest

from staticgraph.datasets.smiles import molecule_of

pytest.importorskip("rdkit", reason="needs the extra smiles")

SMILES = ["CCO", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O", "C"]
JSON = {"Content-Type": "application/json"}
NPZ = {"Content-Type": "application/octet-stream"}
COMPACT = {"Content-Type": "application/x-staticgraph"}


def graph_of(smiles: str) -> dict:
    atoms, edges, bonds = molecule_of(smiles)
    return {"x": atoms.tolist(), "edge_index": edges.tolist(), "edge_attr": bonds.tolist()}


def npz_of(graphs: list[dict]) -> dict:
    arrays = [{k: np.array(v, np.int64) for k, v in g.items()} for g in graphs]
    return {
        "num_nodes": np.array([len(a["x"]) for a in arrays]),
        "num_edges": np.array([len(a["edge_attr"]) for a in arrays]),
        "x": np.concatenate([a["x"] for a in arrays]),
        "edge_attr": np.concatenate([a["edge_attr"].reshape(-1, 3) for a in arrays]),
        "edge_index": np.concatenate([a["edge_index"].reshape(2, -1) for a in arrays], axis=1),
    }


def saved(arrays: dict) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


ETHANOL = graph_of("CCO")


def changed(**values) -> bytes:
    return json.dumps({"graphs": [{**ETHANOL, **values}]}).encode()


def with_array(name: str, content: bytes) -> bytes:
    file = io.BytesIO(saved(npz_of([ETHANOL])))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return with_array("more.npy", file.getvalue())


def twice(first: str, second: str) -> bytes:
    """Returns an npz of ethanol that has one array under both names."""
    arrays = npz_of([ETHANOL])
    file = io.BytesIO(saved(arrays))
    with zipfile.ZipFile(file, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about duplicate names
        assert first in archive.namelist()
        archive.writestr(second, archive.read(first))
    return file.getvalue()


def claiming(shape: str) -> bytes:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return with_array("more.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
                      + header.encode() + b"12345678")  # fmt: skip


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(2_000_000))
    return file.getvalue()


def crowded() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(300):
            archive.writestr(str(number), b"")
    return file.getvalue()


def packed_otherwise() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", bytes(100))
    return file.getvalue()


LONG_CHAIN = "C" * 700
HOSTILE = {
    "nothing": (b"", JSON, 400, "no JSON"),
    "no JSON": (b"{", JSON, 400, "no JSON"),
    "not text": (b"\xff\xfe\x00", JSON, 400, "no JSON"),
    "deep": (b"[" * 90_000, JSON, 400, "no JSON"),
    "a long number": (b'{"graphs": [' + b"9" * 9000 + b"]}", JSON, 400, "no JSON"),
    "NaN": (b'{"graphs": [{"x": NaN}]}', JSON, 400, "NaN is not JSON"),
    "texts among numbers": (changed(x=[[0] * 8 + ["a"]] * 3), JSON, 422, "no array of numbers"),
    "numbers and lists": (changed(x=[[0] * 9, 1, [0] * 9]), JSON, 422, "no array of numbers"),
    "a list": (b"[]", JSON, 422, "must be"),
    "both": (b'{"graphs": [], "smiles": []}', JSON, 422, "must be"),
    "no list": (b'{"graphs": {"0": 1}}', JSON, 422, "must be a list"),
    "no graph": (b'{"graphs": []}', JSON, 422, "no graph"),
    "many graphs": (json.dumps({"smiles": ["C"] * 21}).encode(), JSON, 413, "at most 20"),
    "a large body": (b" " * 100_001, JSON, 413, "more than 100,000 bytes"),
    "graph is a number": (b'{"graphs": [1]}', JSON, 422, "graph 0 is no object"),
    "a field lacks": (b'{"graphs": [{"x": []}]}', JSON, 422, "lacks 'edge_attr'"),
    "an unknown field": (changed(z=[1]), JSON, 422, "has 'z'; known are"),
    "text for numbers": (changed(x=[["a"] * 9] * 3), JSON, 422, "no array of numbers"),
    "null": (changed(x=None), JSON, 422, "no array of numbers"),
    "ragged rows": (changed(x=[[1], [1, 2]]), JSON, 422, "no array of numbers"),
    "a fraction": (changed(x=[[0.5] * 9] * 3), JSON, 422, "is no int64"),
    "beyond int64": (changed(x=[[2**70] * 9] * 3), JSON, 422, "'x' has a value that is no int64"),
    "beyond every float": (changed(x=[[10**400] * 9] * 3), JSON, 422, "no array of numbers"),
    "another width": (changed(x=[[0] * 8] * 3), JSON, 422, "shape [3, 8]"),
    "too few rows": (changed(edge_attr=ETHANOL["edge_attr"][:2]), JSON, 422, "has 2 rows"),
    "an edge outside": (changed(edge_index=[[0] * 4, [3] * 4]), JSON, 422, "outside of 0 to 2"),
    "an edge below": (changed(edge_index=[[0] * 4, [-1] * 4]), JSON, 422, "outside"),
    "edges of three ends": (changed(edge_index=[[0], [0], [0]]), JSON, 422, "[2, edges]"),
    "num_nodes is text": (changed(num_nodes="3"), JSON, 422, "whole number"),
    "num_nodes is huge": (changed(num_nodes=10**18), JSON, 422, "rows"),
    "an unknown category": (changed(x=[[999] * 9] * 3), JSON, 422, "has 999 in column 0"),
    "a negative category": (changed(x=[[-1] * 9] * 3), JSON, 422, "has -1 in column 0"),
    "no SMILES": (b'{"smiles": ["not a molecule"]}', JSON, 422, "RDKit cannot read"),
    "an empty SMILES": (b'{"smiles": [" "]}', JSON, 422, "is empty"),
    "SMILES is a number": (b'{"smiles": [5]}', JSON, 422, "no text"),
    "half a character": (b'{"smiles": ["\\ud800"]}', JSON, 422, "SMILES 0"),
    "a long SMILES": (json.dumps({"smiles": ["C" * 5000]}).encode(), JSON, 422, "at most 4000"),
    "a large molecule": (json.dumps({"smiles": [LONG_CHAIN]}).encode(), JSON, 413, "700 nodes"),
    "packed": (
        gzip.compress(changed()), {**JSON, "Content-Encoding": "gzip"}, 415, "(Content-Encoding: gz"
    ),
    "another type": (b"x", {"Content-Type": "text/xml"}, 415, "text/xml"),
    "no compact bytes": (b"SGF1", COMPACT, 400, "is no application/x-staticgraph"),
    "no npz": (b"PK not", NPZ, 400, "no npz"),
    "a cut npz": (saved(npz_of([ETHANOL]))[:-30], NPZ, 400, "no npz"),
    "a pickle": (pickled(), NPZ, 400, "array 'more' cannot be read"),
    "a huge shape": (claiming("(10**15,)"), NPZ, 400, "array 'more'"),
    "a shape beyond its bytes": (claiming("(1000000000000,)"), NPZ, 400, "array 'more'"),
    "a bomb": (bomb(), NPZ, 413, "unfolds to 2,000"),
    "an array twice": (twice("x.npy", "x.npy"), NPZ, 422, "array 'x' twice"),
    "an array under two names": (twice("x.npy", "x"), NPZ, 422, "array 'x' twice"),
    "many arrays": (crowded(), NPZ, 422, "has 300 arrays"),
    "packed otherwise": (packed_otherwise(), NPZ, 422, "otherwise than NumPy"),
    "an array lacks": (saved({"x": np.zeros((1, 9), int)}), NPZ, 422, "lacks edge_attr"),
    "a negative number": (
        saved({**npz_of([ETHANOL]), "num_nodes": np.array([-3])}), NPZ, 422, "cannot be"
    ),
    "another number of rows": (
        saved({**npz_of([ETHANOL]), "num_nodes": np.array([4])}), NPZ, 422, "'x' has not 4 rows"
    ),
    "scalars": (
        saved({**npz_of([ETHANOL]), "num_nodes": np.array(3), "num_edges": np.array(4)}),
        NPZ, 422, "no graph",
    ),
}  # fmt: skip
