"""What a run learns, in words, for the line that opens it and for its report."""

from __future__ import annotations

from collections.abc import Sequence

from staticgraph.text.how_many import how_many
from staticgraph.text.some import some

OUTPUTS = {"binary": "yes-no question", "classes": "class"}


def task_words(name: str, outputs: int, metric: str, classes: Sequence[str] = ()) -> str:
    """``predicting 3 classes (CA, CI, CM), judged by accuracy``.

    Args:
        name: ``binary``, ``regression`` or ``classes``.
        outputs: columns of the model's output.
        metric: its name.
        classes: names of the classes, where there are some.
    """
    named = f" ({some(classes)})" if classes else ""
    return f"predicting {how_many(outputs, OUTPUTS.get(name, 'number'))}{named}, judged by {metric}"
