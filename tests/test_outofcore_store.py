"""Partitioned graphs on disk: nothing lost, correct order, bounded memory, damage named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.encoder_trainers import random_edges
from support.patience import patience
from support.program import run_program

from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.outofcore import PartitionedGraph, partition


def original(graph: PartitionedGraph) -> np.ndarray:
    """All edges in the caller's node numbers, in the file's order."""
    rows = graph.read_edges()
    columns = [graph.node_ids[rows[:, 0]], graph.node_ids[rows[:, -1]], *rows[:, 1:-1].T]
    return np.stack(columns)


def sorted_columns(edges: np.ndarray) -> np.ndarray:
    return edges[:, np.lexsort(edges)]


@examples(40)
@given(
    n=st.integers(1, 40), e=st.integers(0, 120), p=st.integers(1, 8), chunk=st.integers(1, 30),
    relations=st.integers(0, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_edge_is_there_once_in_its_cell(tmp_path_factory, n, e, p, chunk, relations, seed):
    edges = random_edges(n, e, seed, relations)
    if -(-n // -(-n // p)) != p:
        with pytest.raises(BadGraph, match="does not divide"):
            partition(edges, n, p, tmp_path_factory.mktemp("g") / "g")
        return
    graph = partition(edges, n, p, tmp_path_factory.mktemp("g") / "g", chunk=chunk, seed=seed)
    np.testing.assert_array_equal(sorted_columns(original(graph)), sorted_columns(edges))
    np.testing.assert_array_equal(np.sort(graph.node_ids), np.arange(n))
    size = -(-n // p)
    for i, j in np.ndindex(p, p):
        rows = graph.read_cells([(i, j)])
        assert (rows[:, 0] // size == i).all()
        assert (rows[:, -1] // size == j).all()
        assert len(rows) == graph.cell_sizes[i, j]
    assert sum(graph.nodes_of(k) for k in range(p)) == n


def test_any_choice_of_cells_is_what_reading_one_by_one_gives(tmp_path):
    graph = partition(random_edges(50, 400), 50, 5, tmp_path / "g")
    wanted = [(3, 4), (0, 0), (0, 1), (4, 0), (2, 2)]
    one_by_one = np.concatenate([graph.read_cells([cell]) for cell in sorted(wanted)])
    np.testing.assert_array_equal(graph.read_cells(wanted), one_by_one)
    assert graph.read_cells([]).shape == (0, 2)
    # Adjacent cells are read at once: (0,0) with (0,1), the end of row 3 with the start of row 4.
    before = graph.edge_file.reads
    graph.read_cells(wanted)
    assert graph.edge_file.reads - before == 3


def test_degrees_of_no_direction_are_refused_and_others_are_not_changed(tmp_path):
    graph = partition([[0], [1]], 2, 1, tmp_path / "g")
    with pytest.raises(ValueError, match="direction='up'; choose one of in, out, both"):
        graph.degrees("up")
    with pytest.raises(ValueError, match="read-only"):  # a loader's weights would change with it
        graph.degrees()[0] = 7


def test_small_chunks_a_file_and_a_function_give_the_same_file(tmp_path):
    edges = random_edges(30, 500)
    np.save(tmp_path / "edges.npy", edges)
    sources = [edges, tmp_path / "edges.npy", lambda: iter(np.array_split(edges, 7, axis=1))]
    written = []
    for number, source in enumerate(sources):
        for chunk in (3, 1000):
            partition(source, 30, 3, tmp_path / f"g{number}-{chunk}", chunk=chunk)
            written.append((tmp_path / f"g{number}-{chunk}" / "edges.bin").read_bytes())
    assert len(set(written)) == 1


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_nodes_near_the_training_nodes_follow_them_by_expected_visits(tmp_path, hops, chunk):
    """Expected visits by powers of the transition matrix, from a node to the sources of its
    incoming edges. The order is by float32 values, so neighbours may differ by its rounding."""
    edges, training = random_edges(60, 150, seed=4), np.array([7, 3, 40, 3])
    graph = partition(
        lambda: iter(np.array_split(edges, 4, axis=1)), 60, 30, tmp_path / "g",
        training_nodes=training, near=hops, chunk=chunk,
    )  # fmt: skip
    steps = np.zeros((60, 60))
    np.add.at(steps, (edges[1], edges[0]), 1.0)
    steps /= np.maximum(1, steps.sum(axis=1, keepdims=True))
    start = np.isin(np.arange(60), training).astype(float)
    visits = sum(start @ np.linalg.matrix_power(steps, k) for k in range(hops + 1))
    assert set(graph.node_ids[:3].tolist()) == {3, 7, 40}
    assert (np.diff(visits[graph.node_ids[3:]]) < 1e-6).all()
    np.testing.assert_array_equal(np.sort(graph.node_ids), np.arange(60))
    assert (graph.manifest.near, graph.manifest.training_partitions) == (hops, [0, 1])


def test_only_a_partitioned_graph_is_replaced(tmp_path):
    partition(random_edges(10, 20), 10, 2, tmp_path / "g")
    partition(random_edges(10, 30), 10, 2, tmp_path / "g", overwrite=True)
    assert PartitionedGraph(tmp_path / "g").num_edges == 30
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="choose another"):
        partition(random_edges(10, 20), 10, 2, tmp_path / "other")


def test_damage_is_found_and_named(tmp_path):
    folder = tmp_path / "g"
    graph = partition(random_edges(40, 300), 40, 4, folder, features=np.ones((40, 2), np.float32))
    PartitionedGraph(folder, verify=True)
    contents = bytearray((folder / "edges.bin").read_bytes())
    # The last edge belongs to the last source partition; its block is that row of cells.
    begins = int(graph.offsets[12]) * 8
    contents[-1] ^= 1
    (folder / "edges.bin").write_bytes(contents)
    PartitionedGraph(folder)
    with pytest.raises(StoreCorrupt, match=rf"edges.bin .* from byte {begins} on"):
        PartitionedGraph(folder, verify=True)
    (folder / "edges.bin").write_bytes(contents[:-8])
    with pytest.raises(StoreCorrupt, match="partition the graph again"):
        PartitionedGraph(folder)
    # If the file is truncated after opening, the read itself names the place.
    where = rf"edges.bin ends at byte {len(contents) - 8}, 8 bytes short of the block that begins"
    with pytest.raises(StoreCorrupt, match=where):
        graph.read_cells([(3, 3)])


def test_a_missing_or_foreign_manifest_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"outofcore\.partition"):
        PartitionedGraph(tmp_path)
    partition(random_edges(10, 20), 10, 2, tmp_path / "g")
    path = tmp_path / "g" / "manifest.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "version": 99}))
    with pytest.raises(StoreCorrupt, match="version 99"):
        PartitionedGraph(tmp_path / "g")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_edges(tmp_path):
    """The peak memory of the process stays the same for four times the edges."""
    peaks = _peaks(tmp_path, 1_000_000, 4_000_000)
    assert peaks[1] - peaks[0] < 30, peaks


def _peaks(folder: Path, *edges: int) -> list[int]:
    """Peak resident MiB of one process after each partitioning of the given numbers of generated
    edges, in chunks of a quarter million."""
    code = f"""
import numpy as np
from staticgraph.outofcore import partition
def edges():
    for k in range(number // 250_000):
        yield np.random.default_rng(k).integers(0, 100_000, (2, 250_000))
open("/proc/self/clear_refs", "w").write("5")  # the most so far is what is there now
for number in {edges}:
    partition(edges, 100_000, 16, {str(folder)!r} + f"/{{number}}", chunk=250_000)
    said = open("/proc/self/status").read()
    print(int(said.split("VmHWM:")[1].split()[0]) // 1024)
"""
    done = run_program(["-c", code], timeout=patience(120))
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]
