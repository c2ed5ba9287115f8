"""Every layer of torch_geometric.nn that can be built here, and how a model would call it.

One table serves the tests and the support page of the docs. A case is a layer and a call; around it
stands a small model: a linear encoder before, the sum over each graph and a linear head after.
"""

from layer_cases.aggregations import aggregations
from layer_cases.case import C, Case, Model
from layer_cases.convolutions import convolutions
from layer_cases.models import models
from layer_cases.norms import norms
from layer_cases.pools import pools

CASES: list[Case] = [*convolutions(), *norms(), *aggregations(), *pools(), *models()]

__all__ = ["CASES", "C", "Case", "Model"]
