"""The names of the tasks that a target can be given; nothing here imports torch."""

from __future__ import annotations

# ``auto`` infers which of the others applies.
TASKS = ("auto", "regression", "binary", "classes")
AUTO = TASKS[0]


def check_task(task: str) -> None:
    """Rejects an unknown task.

    Raises:
        ValueError: if it is none of :data:`TASKS`.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r}; choose one of {', '.join(TASKS)}")
