"""What a check found: one row per module, the obstacles by line, the comparison with PyG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from staticgraph.errors import NotStatic
from staticgraph.nn.subclasses import form_of
from staticgraph.sizes.attention import AttentionRow
from staticgraph.steps.tracing.obstacles import RECORDING_ALONE, RESULTS, Obstacle
from staticgraph.text.how_many import how_many
from staticgraph.text.table import as_preformatted, table

if TYPE_CHECKING:  # it needs PyG
    from staticgraph.rewrites.explain import Explanation


def module_row(
    path: str,
    module: torch.nn.Module,
    obstacles: Sequence[Obstacle],
    attention: str | None,
    inert: bool | None,
) -> ModuleRow:
    """Returns the row of a module.

    Args:
        path: its name in the model.
        module: as it was given, not yet converted.
        obstacles: those found in it.
        attention: the path that its attention takes, if known.
        inert: whether its real outputs were the same with other padding; None if that was not
            measured.
    """
    form = form_of(type(module), derived=False)
    attends = isinstance(getattr(module, "attn", None), torch.nn.MultiheadAttention)
    if obstacles:
        how = obstacles[0].kind
        if how != "refused":  # the message is printed below the table
            how += f": {obstacles[0].operation.splitlines()[0][:60]}"
    elif form is not None and attends:
        how = f"attention {attention}, see below" if attention else "attention"
    elif form is not None:
        how = _first_sentence(form)
    else:
        how = "as it is"
    return ModuleRow(path, type(module).__name__, how, inert)


def is_layer(module: torch.nn.Module) -> bool:
    """Whether a module has a row despite its children: a PyG layer, or one with a static form."""
    kind = type(module)
    served = form_of(kind, derived=False) is not None
    return served or kind.__module__.startswith("torch_geometric.")


def _first_sentence(form: type) -> str:
    """Returns a static form's docstring's first sentence, without what the row already says."""
    text = " ".join((form.__doc__ or form.__name__).split()).replace("``", "")
    sentence = re.split(r"\.(?: |$)", text)[0]
    sentence = sentence.split(": ", 1)[-1] if ": " in sentence else sentence.split("; ", 1)[-1]
    return sentence.removeprefix("Takes the place of ").removesuffix(", with the same state")


def obstacle_lines(obstacles: Iterable[Obstacle]) -> list[str]:
    """Returns the numbered obstacles as lines: what, where, why, and what to write instead."""
    lines = []
    for number, obstacle in enumerate(obstacles, 1):
        lines += [
            f"{number}. {obstacle.kind}: {obstacle.operation}",
            f"   {obstacle.where}: {obstacle.line}",
            f"   in {obstacle.module or 'the model'}; {obstacle.reason}",
        ]
        if obstacle.remedy:
            lines.append(f"   instead: {obstacle.remedy}")
    return lines


def obstacle_values(obstacles: Iterable[Obstacle]) -> list[dict[str, Any]]:
    """Returns the obstacles as plain values, for JSON."""
    return [{**o._asdict(), "reason": o.reason, "remedy": o.remedy} for o in obstacles]


DID_NOT_RUN = "the model does not run"
_HEADERS = ("module", "layer", "made static", "padding inert")


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module of the model.

    Attributes:
        path: its name in the model.
        layer: its class.
        how: what was done, ``as it is``, or the obstacle.
        inert: whether its real rows stayed the same with garbage in the padding; None if that was
            not measured.
    """

    path: str
    layer: str
    how: str
    inert: bool | None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What :func:`staticgraph.check` found.

    Attributes:
        model: the model's class.
        batch: the batch it ran on, in words.
        modules: one row per module that ran.
        obstacles: what prevents a recording, in the order of the model.
        graphs: how many graphs torch.compile would make; 0 if it cannot.
        compiles: whether it runs in a mode that compiles: one graph, of fixed shapes.
        recordable: whether the compiled step can be recorded.
        parity: the largest difference from plain PyG without padding, relative to the largest
            value; None if it was not measured.
        parity_note: how it was measured, or why not.
        attention: the path of each layer that has a choice of several, and the reason for it.
        rewrites: which lines of the model mode ``fused`` rewrites; None if that was not asked for,
            or the model does not compile.
    """

    model: str
    batch: str
    modules: tuple[ModuleRow, ...]
    obstacles: tuple[Obstacle, ...]
    graphs: int
    compiles: bool
    recordable: bool
    parity: float | None
    parity_note: str
    attention: tuple[AttentionRow, ...] = ()
    rewrites: Explanation | None = None

    @property
    def ran(self) -> bool:
        """Whether the model ran at all; otherwise nothing is known of whether it is static."""
        return self.parity_note != DID_NOT_RUN

    @property
    def ok(self) -> bool:
        """Whether there are no obstacles, and a single graph."""
        return not self.obstacles and self.graphs == 1

    def __bool__(self) -> bool:
        return self.ok

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        values = asdict(self)
        if self.rewrites is None:
            del values["rewrites"]
        values["obstacles"] = obstacle_values(self.obstacles)
        return {"ok": self.ok, **values}

    def raise_for_obstacles(self) -> CheckReport:
        """Returns the report itself if there are no obstacles.

        Raises:
            NotStatic: there are obstacles; the message is the report.
        """
        if not self.ok:
            raise NotStatic(str(self))
        return self

    def _verdict(self, what: str, holds: bool, other: frozenset[str]) -> str:
        """Returns one line: yes, or no with the numbers of the obstacles that are the reason."""
        if holds:
            return f"{what}: yes"
        reasons = [n for n, o in enumerate(self.obstacles, 1) if o.kind not in other]
        numbers = reasons or range(1, len(self.obstacles) + 1)
        return f"{what}: no, for {', '.join(map(str, numbers))}"

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        inert = {True: "yes", False: "NO", None: "-"}
        rows = [(row.path, row.layer, row.how, inert[row.inert]) for row in self.modules]
        lines = [f"{self.model} on {self.batch}", "", table(_HEADERS, rows), ""]
        lines += obstacle_lines(self.obstacles)
        if not self.ran:
            return "\n".join([*lines, "the model does not run, so nothing else was looked at"])
        lines += [str(row) for row in self.attention]
        difference = "not measured" if self.parity is None else f"{self.parity:.1e}"
        lines += [
            f"captured as {how_many(self.graphs, 'graph')}; largest difference from plain PyG, "
            f"of the largest value: {difference} ({self.parity_note})",
            self._verdict("compiles", self.compiles, RECORDING_ALONE | RESULTS),
            self._verdict("can be recorded", self.recordable, RESULTS),
            "static: nothing stands in the way"
            if self.ok
            else f"not static: {how_many(len(self.obstacles), 'obstacle')}",
        ]
        if self.rewrites is not None:
            lines += ["", str(self.rewrites)]
        return "\n".join(lines)
