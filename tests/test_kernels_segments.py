"""What operators over segments and neighbours refuse, and their numbers where exponentials end."""

from __future__ import annotations

import pytest
import torch

from staticgraph.kernels import (
    dot_attention,
    neighbour_attention,
    neighbour_sum,
)
from staticgraph.kernels.edges import Edges


def test_dot_products_are_so_far_apart_that_an_exponential_would_overflow():
    one = torch.tensor([0, 0])
    ptrs = (torch.tensor(v).int() for v in ([0, 2, 2], [0, 1, 2]))
    where = Edges(torch.tensor([0, 1]), one, *ptrs, one.int())
    query, key = torch.full((2, 1), 100.0), torch.tensor([[90.0], [-90.0]])
    out = dot_attention(query, key, torch.tensor([[3.0], [5.0]]), where, heads=1)
    assert out.tolist() == [[3.0], [0.0]]  # a node without edges gets zero


def test_attention_refuses_what_has_no_meaning():
    one = torch.tensor([0])
    where = Edges(one, one, *(torch.tensor(v).int() for v in ([0, 1], [0, 1], [0])))
    with pytest.raises(ValueError, match="3 columns cannot be cut into 2 heads"):
        neighbour_attention(torch.ones(1, 3), where, heads=2)
    with pytest.raises(ValueError, match="pass loops=True"):
        neighbour_attention(torch.ones(1, 2), where, heads=1, own=torch.ones(1, 1), loops=False)
    two, three = torch.ones(1, 2), torch.ones(1, 3)
    with pytest.raises(ValueError, match="3 columns cannot be cut into 2 heads"):
        dot_attention(two, two, three, where, heads=2)
    with pytest.raises(ValueError, match="queries of 2 columns and keys of 3"):
        dot_attention(two, three, two, where, heads=1)
    with pytest.raises(ValueError, match="added nowhere"):
        dot_attention(two, two, two, where, heads=1, edge=two, to_key=False, to_value=False)
    with pytest.raises(ValueError, match="edge has 3 columns, what it is added to has 2"):
        dot_attention(two, two, three, where, heads=1, edge=three)


def test_neighbour_sum_refuses_a_wrong_operand():
    one = torch.tensor([0])
    edges = Edges(one, one, *(torch.tensor(v).int() for v in ([0, 1], [0, 1], [0])))
    x = torch.ones(1, 2)
    with pytest.raises(ValueError, match="'relu_add' needs an edge operand"):
        neighbour_sum(x, None, edges, transform="relu_add")
    with pytest.raises(ValueError, match="weights of messages are for 'relu_add'"):
        neighbour_sum(x, None, edges, weight=x[:, 0])
    trained = torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="requires_grad=True; weights"):
        neighbour_sum(x, x, edges, weight=trained, transform="relu_add")
    with pytest.raises(ValueError, match="choose one of copy, multiply, relu_add"):
        neighbour_sum(x, None, edges, transform="max")
