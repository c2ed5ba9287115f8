"""What a reply adds to the outputs: probabilities nested like the logits, class names, and nothing
for values that are not numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from staticgraph.serving.replies import reply

ROWS = torch.tensor([[0.5, -2.0, 3.0], [1.0, 1.0, -400.0]], dtype=torch.float64)
# Two graphs, one with three nodes and one with none.
NODES = [torch.cat([ROWS, torch.zeros(1, 3, dtype=torch.float64)]), torch.empty(0, 3)]


def said(outputs, task, classes=()) -> dict:
    return json.loads(reply(outputs, task, classes).body)


@pytest.mark.parametrize("outputs", [ROWS, torch.stack([ROWS, ROWS]), torch.tensor([[2, -1]])],
                         ids=["rows", "of targets", "whole numbers"])  # fmt: skip
def test_probabilities_of_rows(outputs):
    for task, of in (("binary", expit), ("classes", lambda v: softmax(v, axis=-1))):
        found = said(outputs, task)["probabilities"]
        np.testing.assert_allclose(found, of(outputs.numpy()), rtol=1e-12)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("task", ["binary", "classes"])
def test_probabilities_of_nodes(task, kind):
    found = said(kind(NODES), task)["probabilities"]
    of = expit(NODES[0].numpy()) if task == "binary" else softmax(NODES[0].numpy(), axis=-1)
    np.testing.assert_allclose(found[0], of, rtol=1e-12)
    assert found[1] == []


def test_a_number_a_graph_or_a_node_is_a_yes_no_question_and_no_classes():
    one = said(torch.tensor([0.5, float("nan"), -1.0]), "binary")["probabilities"]
    assert one[1] is None
    np.testing.assert_allclose([one[0], one[2]], expit([0.5, -1.0]), rtol=1e-12)
    nodes = [torch.tensor([0.5, -1.0]), torch.tensor([2.0])]  # one value per node of each graph
    for row, found in zip(nodes, said(nodes, "binary")["probabilities"], strict=True):
        np.testing.assert_allclose(found, expit(row.double().numpy()), rtol=1e-12)
    assert "probabilities" not in said(torch.tensor([0.5, -1.0]), "classes")
    assert "probabilities" not in said(nodes, "classes")


@pytest.mark.parametrize(
    "outputs", [{"a": ROWS}, torch.tensor([[True], [False]]), [["a"]], 3.5], ids=str
)
def test_what_is_no_row_of_numbers_has_no_probabilities(outputs):
    assert said(outputs, "binary").keys() == {"outputs"}


def test_what_is_not_a_number_is_of_no_class():
    names, nan = ("cat", "dog", "bird"), float("nan")
    rows = torch.tensor([[nan, 1.0, 2.0], [0.0, nan, 0.0], [0.5, -2.0, 3.0]])
    found = said(rows, "classes", names)
    assert found["classes"] == [None, None, "bird"]
    assert found["outputs"][0] == [None, 1.0, 2.0]
    assert said(torch.tensor([[1.0, 2.0]]), "classes", names).keys() == {"outputs", "probabilities"}
