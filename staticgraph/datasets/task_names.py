"""What a target may be asked to be, by name; here nothing imports torch."""

from __future__ import annotations

# ``auto`` finds out what of the others it is.
TASKS = ("auto", "regression", "binary", "classes")
AUTO = TASKS[0]


def check_task(task: str) -> None:
    """Refuses any other name.

    Raises:
        ValueError: it is none of :data:`TASKS`.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r}; choose one of {', '.join(TASKS)}")
