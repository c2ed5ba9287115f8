"""The fields of the data, as far as a runner knows them.

A plan made from a store knows them; a plain list of capacities does not, and an example says them.
What compiles, records or exports needs the shapes and dtypes of every field of a batch before there
is one.
"""

from __future__ import annotations

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.schema import Schema
from staticgraph.store.graph_columns import GraphColumns


class DataFields:
    """What one runner knows of its data.

    Args:
        schema: of the plan.

    Attributes:
        schema: the fields, the latest example's if there was one; None where nothing said them.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.schema: Schema | None = schema

    def learn(self, example: StaticBatch | GraphColumns) -> None:
        """From now on, those of an example."""
        self.schema = _schema_of(example)

    def of(self, example: StaticBatch | GraphColumns | None, remedy: str) -> Schema:
        """Those of an example, or what is known where there is none.

        Args:
            example: a batch or a store.
            remedy: what to pass instead of nothing, for the message.

        Raises:
            ValueError: the fields are not known.
        """
        schema = self.schema if example is None else _schema_of(example)
        if schema is None:
            raise ValueError(
                "the plan is a plain list of capacities, which does not say what fields a graph "
                f"has: pass {remedy}, or use plan_buckets(store, ...)"
            )
        return schema


def _schema_of(example: StaticBatch | GraphColumns) -> Schema:
    return example.layout.schema if isinstance(example, StaticBatch) else example.schema
