"""Every layer of torch_geometric.nn that can be built here, and how a model would call it.

One table serves the tests and the support page of the docs. A case is a layer and a call, inside a
small model with a linear encoder before, and the sum over each graph and a linear head after.
"""

from support.layer_cases.aggregations import aggregations
from support.layer_cases.case import C, Case, Model
from support.layer_cases.convolutions import convolutions
from support.layer_cases.models import models
from support.layer_cases.norms import norms
from support.layer_cases.pools import pools

CASES: list[Case] = [*convolutions(), *norms(), *aggregations(), *pools(), *models()]

__all__ = ["CASES", "C", "Case", "Model"]
