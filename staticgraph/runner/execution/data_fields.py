"""The fields of the data, as far as a runner knows them.

A plan made from a store knows them; a plain list of capacities does not, so an example must supply
them. Compiling, recording and exporting need the shapes and dtypes of every field of a batch before
the first batch exists.
"""

from __future__ import annotations

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.schema import Schema
from staticgraph.store.graph_columns import GraphColumns


class DataFields:
    """What one runner knows of the fields of its data.

    Args:
        schema: the plan's fields, or None.

    Attributes:
        schema: the fields; those of the latest example, if there was one; None while unknown.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.schema: Schema | None = schema

    def learn(self, example: StaticBatch | GraphColumns) -> None:
        """Uses the fields of an example from now on."""
        self.schema = _schema_of(example)

    def of(self, example: StaticBatch | GraphColumns | None, remedy: str) -> Schema:
        """Returns the fields of an example or, without one, the known fields.

        Args:
            example: a batch or a store.
            remedy: what the caller could have passed, for the error message.

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
