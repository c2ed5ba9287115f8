"""Draws the packages of the library and which of them uses which."""

from __future__ import annotations

from docs.tools.svg import MUTED, SOFT_TEAL, TEAL, Drawing

# From the bottom up: the packages of each row with their horizontal positions, 0 to 6.
ROWS: tuple[tuple[tuple[str, float], ...], ...] = (
    (("sizes", 3),),
    (("packing", 2), ("memory", 4)),
    (("schema", 0.6), ("plans", 3)),
    (("store", 0.6), ("epochs", 3), ("kernels", 5.4)),
    (("datasets", 0.6), ("batches", 3)),
    (("nn", 4.4),),
    (("rewrites", 3.5), ("distributed", 5.4)),
    (("steps", 3),),
    (("recording", 1.6), ("probing", 3), ("checking", 4.4)),
    (("runner", 3),),
    (("training", 3),),
    (("outofcore", 1), ("serving", 3), ("dryrun", 5)),
    (("cli", 3),),
)
# From each package to those that use it; arrows implied by others are left out.
ARROWS = (
    ("sizes", "packing memory"),
    ("packing", "plans"),
    ("memory", "plans"),
    ("schema", "store"),
    ("store", "datasets batches"),
    ("plans", "epochs"),
    ("epochs", "batches"),
    ("kernels", "batches nn"),
    ("batches", "nn"),
    ("nn", "rewrites"),
    ("rewrites", "steps"),
    ("distributed", "steps"),
    ("steps", "recording probing checking"),
    ("recording", "runner"),
    ("probing", "runner"),
    ("checking", "runner"),
    ("runner", "dryrun training outofcore"),
    ("training", "serving"),
    ("outofcore", "cli"),
    ("dryrun", "cli"),
    ("serving", "cli"),
)
WIDE, TALL, APART, BETWEEN = 96, 26, 102, 48


def arrows() -> list[tuple[str, str]]:
    return [(used, user) for used, users in ARROWS for user in users.split()]


def house() -> Drawing:
    """Draws the packages as boxes, with the lowest layer at the bottom."""
    height = BETWEEN * len(ROWS) + 84
    drawing = Drawing(760, height, "The rooms of the library, from the ground up")
    drawing.text(24, 30, "Folders of staticgraph/, from the ground up", bold=True, size=15)
    drawing.text(24, 50, "a line leads up from what is used to what uses it", fill=MUTED)
    at: dict[str, tuple[float, float]] = {}
    for row, rooms in enumerate(ROWS):
        for name, across in rooms:
            at[name] = (74 + APART * across, height - 36 - BETWEEN * row)
    for used, user in arrows():
        (x, y), (to_x, to_y) = at[used], at[user]
        y, to_y = y - TALL / 2, to_y + TALL / 2
        low = max(to_y, y - BETWEEN + TALL)  # sideways within the first row, then straight up
        bend = (y - low) / 2
        curve = (f"M {x:.1f} {y:.1f}", f"C {x:.1f} {y - bend:.1f},")
        end = (f"{to_x:.1f} {low + bend:.1f},", f"{to_x:.1f} {low:.1f}", f"L {to_x:.1f} {to_y:.1f}")
        drawing.path((*curve, *end), MUTED)
        drawing.circle(to_x, to_y, 2.5, MUTED)
    for name, (x, y) in at.items():
        box = (x - WIDE / 2, y - TALL / 2, WIDE, TALL)
        drawing.rect(*box, SOFT_TEAL, stroke=TEAL, round=5)
        drawing.text(x, y + 4.5, name, anchor="middle")
    return drawing
