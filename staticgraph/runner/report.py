"""The report of what a runner did: plain numbers, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from staticgraph.files.document import read_document, save_json
from staticgraph.runner.way_choice import WayChoice
from staticgraph.sizes.attention import AttentionRow
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.table import as_preformatted, percent, table


@dataclass(frozen=True, slots=True)
class BucketReport:
    """The report of one bucket.

    Efficiencies are real rows over physical rows, of the training batches, or of the others if
    nothing was trained. Times are in milliseconds. None where nothing was measured. Bucket -1, of 0
    rows, stands for batches that kept their own sizes and ran in eager.
    """

    bucket: int
    nodes: int
    edges: int
    graphs: int
    batches: int
    eval_batches: int
    real_graphs: int
    node_efficiency: float | None
    edge_efficiency: float | None
    graph_efficiency: float | None
    compiles: int
    late_compiles: int
    graph_breaks: int
    recordings: int
    compile_s: float
    step_ms: float | None
    step_ms_p90: float | None
    predicted_bytes: int | None = None
    measured_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The report of all buckets of a runner, and every choice and fallback with its reason."""

    model: str
    device: str
    mode: str
    mode_reason: str
    autocast: str | None
    buckets: tuple[BucketReport, ...]
    fallbacks: tuple[str, ...]
    versions: dict[str, str]
    warmup_s: float | None = None
    warm_start: bool = False
    choices: tuple[WayChoice, ...] = ()
    cold_start_s: float | None = None
    replays: Mapping[str, int] = field(default_factory=dict)
    attention: tuple[AttentionRow, ...] = ()
    optional: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Writes the report as JSON."""
        save_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Reads what :meth:`save` wrote; raises ValueError if the file is something else."""
        return read_document(path, "a report", cls.from_dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """Rebuilds a report from what :meth:`to_dict` returned."""
        buckets = tuple(BucketReport(**bucket) for bucket in values["buckets"])
        choices = tuple(map(WayChoice.from_dict, values.get("choices", ())))
        parts = {
            "buckets": buckets,
            "choices": choices,
            "attention": tuple(map(AttentionRow.from_dict, values.get("attention", ()))),
            "fallbacks": tuple(values["fallbacks"]),
            "optional": tuple(values.get("optional", ())),
        }
        return cls(**{**values, **parts})

    def _table(self) -> str:
        """One line per bucket; columns with nothing to report are left out."""
        buckets = self.buckets
        columns: dict[str, list[object]] = {
            "bucket": ["own sizes" if b.bucket < 0 else b.bucket for b in buckets],
            **{
                rows: ["-" if b.bucket < 0 else f"{getattr(b, rows):,}" for b in buckets]
                for rows in ("nodes", "edges", "graphs")
            },
            "steps": [f"{b.batches:,}" for b in buckets],
            "evals": [f"{b.eval_batches:,}" for b in buckets],
            "nodes filled": [percent(b.node_efficiency) for b in buckets],
            "edges filled": [percent(b.edge_efficiency) for b in buckets],
            "graphs filled": [percent(b.graph_efficiency) for b in buckets],
            "compiles": [
                f"{b.compiles}" + (f" (+{b.late_compiles} late)" if b.late_compiles else "")
                for b in buckets
            ],
        }
        if any(b.graph_breaks for b in buckets):
            columns["graph breaks"] = [b.graph_breaks for b in buckets]
        if any(b.recordings for b in buckets):
            columns["recordings"] = [b.recordings for b in buckets]
        columns["step ms"] = [_ms(b.step_ms) for b in buckets]
        columns["p90 ms"] = [_ms(b.step_ms_p90) for b in buckets]
        if any(b.predicted_bytes is not None for b in buckets):
            columns["predicted"] = [_bytes(b.predicted_bytes) for b in buckets]
            columns["measured"] = [_bytes(b.measured_bytes) for b in buckets]
        return table(list(columns), zip(*columns.values(), strict=True))

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        precision = f", autocast {self.autocast}" if self.autocast else ""
        lines = [
            f"{self.model} on {self.device}, mode {self.mode} ({self.mode_reason}){precision}",
            self._table(),
        ]
        if self.warmup_s is not None:
            line = f"warm-up: {self.warmup_s:.1f} s"
            if self.warm_start:
                line += " with compiled code of an earlier process"
                line += f", whose own took {self.cold_start_s:.1f} s" if self.cold_start_s else ""
            lines.append(line)
        lines += [
            f"recorded: {key}, replayed {how_many(n, 'time')}" for key, n in self.replays.items()
        ]
        if self.optional:
            lines.append(f"optional arguments from fields: {', '.join(self.optional)}")
        lines += [f"choice: {choice}" for choice in self.choices]
        lines += [str(row) for row in self.attention]
        lines += [f"fallback: {reason}" for reason in self.fallbacks] or ["fallbacks: none"]
        return "\n".join(lines)


def _ms(time: float | None) -> str:
    return "-" if time is None else f"{time:.2f}"


def _bytes(count: int | None) -> str:
    return "-" if count is None else human_bytes(count)
