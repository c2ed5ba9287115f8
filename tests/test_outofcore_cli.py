"""``staticgraph partition`` and ``train-large``, and the data sets they open."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.command import help_of, printed_json, refusal, status_of

from staticgraph import cli
from staticgraph.outofcore.disk import data

LINKS = ["train-large", "--task", "link", "--dimension", "8", "--batch-size", "40", "--chunks", "4",
         "--negatives", "10", "--epochs", "2"]  # fmt: skip


@pytest.fixture(scope="module")
def triples(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "triples.npz"
    rng = np.random.default_rng(0)
    parts = {
        name: np.stack([rng.integers(0, 64, n), rng.integers(0, 3, n), rng.integers(0, 64, n)])
        for name, n in (("train", 300), ("valid", 20), ("test", 20))
    }
    np.savez(path, num_entities=64, num_relations=3, **parts)
    return str(path)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "graph.npz"
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 120, (2, 400))
    edges = np.unique(np.sort(ends[:, ends[0] != ends[1]], 0), axis=1)
    parts = dict(zip(("train", "val", "test"), np.split(np.arange(120), [12, 24]), strict=True))
    np.savez(
        path, edges=edges, num_nodes=120, label=rng.integers(0, 5, 120), x_indptr=np.arange(121),
        x_indices=rng.integers(0, 16, 120), x_shape=[120, 16], **parts,
    )  # fmt: skip
    return str(path)


def report_in(folder) -> dict:
    return json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)


def test_partition_of_arrays(tmp_path, capsys):
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 2]]))
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    arguments = ["partition", "--edges", str(tmp_path / "e.npy"), "--out", str(tmp_path / "g")]
    assert "--nodes" in refusal(arguments, capsys)
    arguments += ["--nodes", "3"]
    assert cli.main([*arguments, "--features", str(tmp_path / "x.npy")]) == 0
    assert "edges" in capsys.readouterr().out
    assert "choose num_partitions=3" in refusal([*arguments, "--partitions", "9"], capsys)


def test_links_train_report_and_go_on(triples, tmp_path, capsys):
    arguments = [*LINKS, "--data", triples, "--policy", "comet", "--partitions", "8", "--buffer",
                 "4", "--out", str(tmp_path)]  # fmt: skip
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert "MRR" in captured.out
    assert "waited" in captured.err
    report = report_in(tmp_path)
    assert [epoch["epoch"] for epoch in report["epochs"]] == [1, 2]
    assert 0 < report["test"]["mrr"] < 1
    assert (tmp_path / "schedule.png").read_bytes()[:4] == b"\x89PNG"
    # Two epochs are committed; a third continues from them and equals three epochs in one run.
    assert cli.main([*arguments, "--epochs", "3"]) == 0
    gone_on = report_in(tmp_path)
    assert [epoch["epoch"] for epoch in gone_on["epochs"]] == [1, 2, 3]
    assert cli.main([*arguments, "--epochs", "3", "--overwrite"]) == 0
    at_once = report_in(tmp_path)
    assert at_once["test"] == gone_on["test"]
    assert "--overwrite" in refusal([*arguments, "--partitions", "4"], capsys)


def test_memory_chooses_the_sizes(triples, tmp_path, capsys):
    arguments = [*LINKS, "--data", triples, "--out", str(tmp_path)]
    assert cli.main([*arguments, "--memory", "7K"]) == 0
    assert report_in(tmp_path)["partitions"] > 1
    assert cli.main([*arguments, "--memory", "1G", "--overwrite"]) == 0
    assert report_in(tmp_path)["partitions"] == 1
    assert "K, M, G and T" in refusal([*arguments, "--memory", "many"], capsys)


@pytest.mark.parametrize("policy", ["in-memory", "node-cache", "dispersed"])
def test_nodes_train_and_report(graph, tmp_path, capsys, policy):
    sizes = [] if policy == "in-memory" else ["--partitions", "8", "--buffer", "4"]
    arguments = ["train-large", "--task", "node", "--data", graph, "--policy", policy, "--fanouts",
                 "4,3", "--hidden", "8", "--epochs", "2", "--batch-size", "5", *sizes]  # fmt: skip
    printed = printed_json([*arguments, "--out", str(tmp_path), "--json"], capsys)
    assert printed["epochs"][-1]["seeds"] == 12
    assert 0 <= printed["test_accuracy"] <= 1
    assert (tmp_path / "schedule.png").exists()


def test_a_run_on_nodes_begins_anew_and_says_so(graph, tmp_path, capsys):
    arguments = ["train-large", "--task", "node", "--data", graph, "--policy", "in-memory",
                 "--fanouts", "2", "--hidden", "4", "--epochs", "2", "--json"]  # fmt: skip
    sittings = []
    for _ in range(2):
        assert cli.main([*arguments, "--out", str(tmp_path)]) == 0
        out, err = capsys.readouterr()
        losses = [epoch["loss"] for epoch in json.loads(out)["epochs"]]
        sittings.append((losses, "training begins at the first epoch" in err))
    assert sittings == [(sittings[0][0], False), (sittings[0][0], True)]
    assert len(sittings[0][0]) == 2
    assert "A run on nodes is not resumed" in " ".join(help_of("train-large").split())


@pytest.mark.parametrize(
    ("task", "name", "said"), [("node", "x_indices", "features"), ("link", "train", "edges")]
)
def test_partitions_of_other_data_of_the_same_sizes_are_refused(
    graph, triples, tmp_path, capsys, task, name, said
):
    arrays = dict(np.load(graph if task == "node" else triples))
    path, run = tmp_path / "data.npz", tmp_path / "run"
    arguments = ["train-large", "--task", task, "--policy", "in-memory", "--epochs", "1",
                 "--data", str(path), "--out", str(run)]  # fmt: skip
    np.savez(path, **arrays)
    assert cli.main(arguments) == 0
    arrays[name] = arrays[name][..., ::-1]
    np.savez(path, **arrays)
    capsys.readouterr()
    assert f"graph has crc32 of {said}=" in refusal(arguments, capsys)
    assert cli.main([*arguments, "--overwrite"]) == 0


def test_policies_of_the_other_task_are_refused(graph, tmp_path, capsys):
    words = ["train-large", "--task", "node", "--data", graph, "--policy", "comet"]
    said = refusal([*words, "--out", str(tmp_path / "r")], capsys)
    assert "takes --policy dispersed, node-cache, in-memory" in said


def printed_report(folder, capsys):
    """The report on stdout, which is the one in the folder and has finite numbers, and stderr."""
    printed, err = capsys.readouterr()
    report = json.loads(printed, parse_constant=pytest.fail)
    assert report == report_in(folder)
    return report, err


@pytest.mark.parametrize("encoder", [[], ["--encoder", "sage", "--fanouts", "3"]])
def test_links_that_diverge_are_reported_and_exit_with_1(triples, tmp_path, capsys, encoder):
    arguments = [*LINKS, "--data", triples, "--policy", "comet", "--partitions", "8", "--buffer",
                 "4", "--out", str(tmp_path), *encoder]  # fmt: skip
    assert cli.main([*arguments, "--rate", "1e30", "--json"]) == 1
    report, err = printed_report(tmp_path, capsys)
    assert (report["diverged"], report["test"], report["epochs"]) == (1, None, [])
    assert err.splitlines()[-1].startswith(
        "staticgraph train-large: the training diverged in epoch 1: "
    )


def test_nodes_that_diverge_are_reported_and_exit_with_1(graph, tmp_path, capsys):
    arguments = ["train-large", "--task", "node", "--data", graph, "--policy", "in-memory",
                 "--fanouts", "4", "--rate", "1e30", "--out", str(tmp_path), "--json"]  # fmt: skip
    assert cli.main(arguments) == 1
    report, err = printed_report(tmp_path, capsys)
    assert report["test_accuracy"] is None
    assert f"diverged in epoch {report['diverged']}: the loss is" in err.splitlines()[-1]


@pytest.mark.parametrize("folder", ["graph", "embeddings"])
def test_overwrite_removes_the_run_and_nothing_else(triples, tmp_path, capsys, folder):
    arguments = [*LINKS, "--data", triples, "--policy", "in-memory", "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    (tmp_path / "thesis.txt").write_text("beside the run")
    (tmp_path / folder / "thesis.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert "'thesis.txt' in it is not part of" in refusal([*arguments, "--overwrite"], capsys)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / folder / "thesis.txt").unlink()
    assert cli.main([*arguments, "--overwrite"]) == 0
    assert (tmp_path / "thesis.txt").exists()
    (tmp_path / "graph" / "manifest.json").write_text("{}")
    assert status_of([*arguments, "--overwrite"]) == 2
    assert (tmp_path / "report.json").exists()


# ---------------------------------------------------------------------- data sets


def test_the_example_graphs_have_the_sizes_they_are_known_for():
    links = data.open_links("fb15k-237")
    assert links.num_nodes == 14541
    assert [part.shape[1] for part in (links.train, links.valid, links.test)] == [
        272_115, 17_535, 20_466,
    ]  # fmt: skip
    # Rows are source, destination, relation.
    assert links.train[2].max() == 236
    for name, n, classes, width in (("cora", 2708, 7, 1433), ("citeseer", 3327, 6, 3703)):
        nodes = data.open_nodes(name)
        assert nodes.features.shape == (n, width)
        assert set(nodes.labels.tolist()) >= set(range(classes))
        np.testing.assert_array_equal(
            np.unique(nodes.edges, axis=1), np.unique(nodes.edges[::-1], axis=1)
        )


LABELLED = {
    "edges": [[0, 1], [1, 2]], "num_nodes": 3, "label": [0, 1, -1], "train": [0], "val": [1],
    "test": [2], "x_indptr": [0, 1, 1, 3], "x_indices": [1, 0, 3], "x_shape": [3, 4],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": [3]}, "train names node 3; there are 3"),
        ({"label": [0.5, 1, 2]}, "labels has 0.5 for node 0"),
        ({"label": None}, "has no label; it holds edges"),
        ({"x_indices": [1, 0, 4]}, "entry 2 of .*: x_indices names feature 4; there are 4"),
        ({"x_indptr": [0, 1, 3]}, "x_indptr does not divide 3 features among 3 nodes"),
    ],
)
def test_nodes_are_given_by_numbers_or_masks_and_nothing_else(change, message, tmp_path):
    path = tmp_path / "g.npz"
    np.savez(path, **LABELLED | {"train": [False, True, True]})
    nodes = data.open_nodes(str(path))
    assert nodes.train.tolist() == [1, 2]
    assert nodes.features.tolist() == [[0, 1, 0, 0], [0] * 4, [0.5, 0, 0, 0.5]]
    np.savez(path, **{k: v for k, v in (LABELLED | change).items() if v is not None})
    with pytest.raises(ValueError, match=message):
        data.open_nodes(str(path))


def test_links_of_a_plain_graph_are_held_out(graph):
    links = data.open_links(graph)
    with np.load(graph) as file:
        edges = file["edges"]
    both = np.concatenate([edges, edges[::-1]], axis=1)  # each edge is true in both directions
    assert sorted(map(tuple, links.known.T.tolist())) == sorted(map(tuple, both.T.tolist()))
    assert links.test.shape[1] == links.valid.shape[1] == round(0.05 * edges.shape[1])
    for share in (0.5, -0.1):
        with pytest.raises(ValueError, match=f"held_out={share} twice leaves no edges"):
            data.open_links(graph, held_out=share)


def test_task_and_policy_follow_from_the_data(triples, tmp_path, capsys):
    """Labels of nodes are what there is to predict where there are any."""
    for spec, task, policy, more in (
        ("cora", "node", "Dispersed", ["--fanouts", "3", "--partitions", "8"]),
        (triples, "link", "Comet", LINKS[3:]),
    ):
        out = ["--out", str(tmp_path / task), "--epochs", "1", "--json"]
        report = printed_json(["train-large", "--data", spec, *more, *out], capsys)
        assert report["task"] == task
        assert report["policy"].startswith(policy)


def test_what_partition_wrote_is_data_for_links(graph, triples, tmp_path, capsys):
    for name, spec in (("graph", graph), ("triples", triples)):
        folder = str(tmp_path / name)
        assert status_of(["partition", "--data", spec, "--partitions", "8", "--out", folder]) == 0
        whole, again = data.open_links(spec, held_out=0.0), data.open_links(folder, held_out=0.0)
        assert again.num_nodes == whole.num_nodes
        assert sorted(again.train.T.tolist()) == sorted(whole.train.T.tolist())
        assert data.open_links(folder).test.shape[1] == round(0.05 * whole.train.shape[1])
    run = [*LINKS, "--data", folder, "--policy", "in-memory", "--out", str(tmp_path / "run")]
    assert status_of(run) == 0
    capsys.readouterr()
    assert "holds edges and no labels: give the .npz" in refusal(
        ["train-large", "--task", "node", "--data", folder], capsys
    )
