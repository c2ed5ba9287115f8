"""A description of what a run learns, for its first line of output and for its report."""

from __future__ import annotations

from collections.abc import Sequence

from staticgraph.text.how_many import how_many
from staticgraph.text.some import some

OUTPUTS = {"binary": "yes-no question", "classes": "class"}


def task_words(name: str, outputs: int, metric: str, classes: Sequence[str] = ()) -> str:
    """A description such as ``predicting 3 classes (CA, CI, CM), judged by accuracy``.

    Args:
        name: ``binary``, ``regression`` or ``classes``.
        outputs: columns of the model's output.
        metric: the name of the metric.
        classes: the names of the classes, if they have names.
    """
    named = f" ({some(classes)})" if classes else ""
    return f"predicting {how_many(outputs, OUTPUTS.get(name, 'number'))}{named}, judged by {metric}"
