"""A number and its noun agree in every message of the package."""

import numpy as np
import pytest

from staticgraph.text.how_many import how_many, how_many_of


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "batch", "1 batch"),
        (0, "graph", "0 graphs"),
        (1128, "graph", "1,128 graphs"),
        (2, "batch", "2 batches"),
        (3, "entry", "3 entries"),
        (2, "training node", "2 training nodes"),
        (np.int64(1), "process", "1 process"),
        (2, "process", "2 processes"),
    ],
)
def test_a_number_with_its_noun(count, noun, said):
    assert how_many(count, noun) == said


def test_a_component_is_named_in_the_plural_and_one_of_it_is_not():
    assert how_many_of(1, "nodes") == "1 node"
    assert how_many_of(20, "edges") == "20 edges"
    assert how_many_of(2, "atom") == "2 atom"
