"""Static-shape batching for graph neural networks in PyTorch.

Graphs of every size go in, a few fixed shapes come out, and each shape runs as one recorded CUDA
graph::

    store = staticgraph.GraphStore.from_pyg(dataset)
    plan = staticgraph.plan_buckets(store, batch_size=128)
    loader = staticgraph.StaticLoader(store, plan, shuffle=True)
    runner = staticgraph.StaticGraphRunner(model, plan, loss=loss, optimizer=optimizer).warmup()
    for batch in loader:
        runner.step(batch)
"""

from staticgraph import datasets
from staticgraph.batch import StaticBatch
from staticgraph.buckets import BucketPlan, plan_buckets
from staticgraph.errors import (
    BadGraph,
    GraphTooLarge,
    NotStatic,
    PlanMismatch,
    SlotsExhausted,
    StoreCorrupt,
)
from staticgraph.loader import StaticLoader
from staticgraph.nn import convert
from staticgraph.recordable_optimizer import make_capturable
from staticgraph.report import Report
from staticgraph.runner import EvalResult, StaticGraphRunner
from staticgraph.schema import Field, Schema
from staticgraph.sizes import Capacity, GraphSize, SizeHistogram
from staticgraph.store import GraphStore

__version__ = "0.1.0"

__all__ = [
    "BadGraph",
    "BucketPlan",
    "Capacity",
    "EvalResult",
    "Field",
    "GraphSize",
    "GraphStore",
    "GraphTooLarge",
    "NotStatic",
    "PlanMismatch",
    "Report",
    "Schema",
    "SizeHistogram",
    "SlotsExhausted",
    "StaticBatch",
    "StaticGraphRunner",
    "StaticLoader",
    "StoreCorrupt",
    "convert",
    "datasets",
    "make_capturable",
    "plan_buckets",
]
