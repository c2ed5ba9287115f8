"""What a reply adds to the outputs: probabilities nested like the logits, class names, and nothing
for values that are not numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit, softmax

from staticgraph.serving.http.replies import reply

ROWS = [[0.5, -2.0, 3.0], [1.0, 1.0, -400.0]]
# Two graphs, one with three nodes and one with none.
NODES = [[*ROWS, [0.0, 0.0, 0.0]], []]


def said(outputs, task, classes=()) -> dict:
    return json.loads(reply(outputs, task, classes).body)


@pytest.mark.parametrize("outputs", [ROWS, [ROWS, ROWS]], ids=["rows", "rows of targets"])
def test_probabilities_of_rows(outputs):
    for task, of in (("binary", expit), ("classes", lambda v: softmax(v, axis=-1))):
        found = said(outputs, task)["probabilities"]
        np.testing.assert_allclose(found, of(np.array(outputs)), rtol=1e-12)


@pytest.mark.parametrize("task", ["binary", "classes"])
def test_probabilities_of_nodes(task):
    found = said(NODES, task)["probabilities"]
    of = expit(NODES[0]) if task == "binary" else softmax(NODES[0], axis=-1)
    np.testing.assert_allclose(found[0], of, rtol=1e-12)
    assert found[1] == []


def test_a_number_a_graph_or_a_node_is_a_yes_no_question_and_no_classes():
    one = said([0.5, None, -1.0], "binary")["probabilities"]
    assert one[1] is None
    np.testing.assert_allclose([one[0], one[2]], expit([0.5, -1.0]), rtol=1e-12)
    nodes = [[0.5, -1.0], [2.0]]  # one value per node of each graph
    for row, found in zip(nodes, said(nodes, "binary")["probabilities"], strict=True):
        np.testing.assert_allclose(found, expit(row), rtol=1e-12)
    assert "probabilities" not in said([0.5, -1.0], "classes")
    assert "probabilities" not in said(nodes, "classes")


@pytest.mark.parametrize("outputs", [{"a": ROWS}, [[True], [False]], [["a"]], 3.5])
def test_what_is_no_row_of_numbers_has_no_probabilities(outputs):
    assert said(outputs, "binary") == {"outputs": outputs}


def test_what_is_not_a_number_is_of_no_class():
    names = ("cat", "dog", "bird")
    found = said([[float("nan"), 1.0, 2.0], [None, 0.0, 0.0], ROWS[0]], "classes", names)
    assert found["classes"] == [None, None, "bird"]
    assert found["outputs"][0] == [None, 1.0, 2.0]
    assert said([[1.0, 2.0]], "classes", names).keys() == {"outputs", "probabilities"}
