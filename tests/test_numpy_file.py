"""A file that NumPy refuses gets the library's own reason: NumPy would advise unpickling it."""

import numpy as np
import pytest

from staticgraph import datasets
from staticgraph.errors import BadGraph, UnknownDataset
from staticgraph.outofcore.disk.inputs import array_of


@pytest.fixture
def whole(tmp_path):
    np.savez_compressed(tmp_path / "whole.npz", a=np.arange(10_000))
    return (tmp_path / "whole.npz").read_bytes()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda whole: b"", "the file is empty"),
        (lambda whole: b"not an archive", "it does not begin as NumPy's files do"),
        (lambda whole: whole[: len(whole) // 2], "it is cut short; copy or download it again"),
        (lambda whole: whole[:90] + b"\0" * 40 + whole[130:], "it is damaged"),
    ],
)
def test_an_npz_that_cannot_be_read(content, reason, whole, tmp_path):
    path = tmp_path / "bad.npz"
    path.write_bytes(content(whole))
    with pytest.raises(UnknownDataset, match=rf"bad\.npz is .* of plain arrays: {reason}") as told:
        datasets.open(path)
    assert "pickle" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"text", "it does not begin as NumPy's files do"),
        (b"\x93NUMPY\x01\x00", "it is cut short"),
    ],
)
def test_an_npy_that_cannot_be_read(content, reason, tmp_path):
    path = tmp_path / "bad.npy"
    path.write_bytes(content)
    with pytest.raises(BadGraph, match=f"is not a .npy file of plain numbers: {reason}"):
        array_of(path, "edges")


def test_one_large_graph_is_for_another_command(tmp_path):
    np.savez(tmp_path / "one.npz", num_nodes=4, edges=np.zeros((2, 3), np.int64))
    with pytest.raises(UnknownDataset, match="one large graph is for staticgraph train-large"):
        datasets.open(tmp_path / "one.npz")
