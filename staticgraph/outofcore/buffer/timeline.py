"""A timeline of the buffer's contents and of the time that training waited, with a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from staticgraph.files import atomic
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import is_left_out


@dataclass(frozen=True, slots=True)
class StateTime:
    """The times of one state of the buffer, in seconds since the epoch began.

    Attributes:
        partitions: the resident partitions.
        entered: those of them that were read for this state.
        asked_s: when training requested the state.
        began_s: when training received it; the difference is waiting time.
        ended_s: when training on it ended.
    """

    partitions: tuple[int, ...]
    entered: tuple[int, ...]
    asked_s: float
    began_s: float
    ended_s: float


def plot(times: Sequence[StateTime], num_partitions: int, path: str | Path) -> None:
    """Plots resident partitions, reads and waits over time to an image file, where matplotlib is
    installed."""
    if is_left_out(path, "matplotlib"):
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for state in times:
        for partition in state.partitions:
            axes.barh(
                partition, state.ended_s - state.began_s, left=state.began_s, height=0.9,
                color="tab:blue", alpha=0.35,
            )  # fmt: skip
    reads = [(state.began_s, k) for state in times for k in state.entered]
    axes.plot(*zip(*reads, strict=True), ".", color="tab:orange", label="read for this state")
    for number, state in enumerate(times):
        axes.axvspan(
            state.asked_s, state.began_s, color="tab:red", alpha=0.6, lw=0,
            label="waited" if not number else None,
        )  # fmt: skip
    axes.set(xlabel="seconds", ylabel="partition", ylim=(-0.5, num_partitions - 0.5))
    axes.set_title(
        f"{how_many(len(times), 'state')}, {how_many(len(reads), 'partition')} read, waited "
        f"{sum(s.began_s - s.asked_s for s in times):.3f} s"
    )
    figure.legend(loc="outside lower center", ncols=2)
    atomic.save_figure(path, figure, dpi=120)
