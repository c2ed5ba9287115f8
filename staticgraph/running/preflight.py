"""Whether a model can run in fixed shapes, and what stands in its way, before anything is recorded.

The model is copied, its layers are made static, and it runs on one padded batch four times: watched
(every operation that a recording cannot contain, with the line of the model), traced (one graph, no
sizes from data), with garbage in the padding (which module lets it reach real rows), and beside
plain PyG on the same graphs without padding. Nothing of the model that was given changes.

What it does not do: compile or record. A model that passes can still exceed the device's memory.
"""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.attention_blocks import attention_path
from staticgraph.batch import StaticBatch
from staticgraph.buckets import BucketPlan
from staticgraph.errors import NotStatic
from staticgraph.nn.call_sites import StaticCalls
from staticgraph.nn.context import BatchContext
from staticgraph.nn.convert import REFUSED_FORMS, STATIC_FORMS, context_of
from staticgraph.nn.gps import StaticGPSConv
from staticgraph.running.arguments import Forward, forward_of
from staticgraph.running.obstacles import Obstacle
from staticgraph.running.preflight_report import ModuleRow, PreflightReport
from staticgraph.running.tracing import trace_step
from staticgraph.running.watching import Watch
from staticgraph.schema import Schema
from staticgraph.sizes import Capacity
from staticgraph.store import GraphStore

# Garbage of this size stands in the padding for the measurement: large beside any feature, and its
# square is far from overflow in float32.
GARBAGE = 1000.0
# Of the largest value: what float32 loses over a deep network, a tenth of what garbage does.
TOLERANCE = 1e-3


def preflight(
    model: torch.nn.Module,
    plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
    example: GraphStore | StaticBatch | None = None,
    *,
    forward: Forward | None = None,
) -> PreflightReport:
    """Runs a copy of the model on one static batch and says what stands in its way.

    Args:
        model: any PyG model; it is not changed.
        plan: the buckets, or a plain list of capacities; the first bucket that the example fits is
            used.
        example: graphs to run on. Without them some are made up from the plan's schema, with zeros
            for integers, since how many categories there are is not known.
        forward: ``forward(model, batch)``, where the model's own parameter names do not tell.

    Returns:
        The report; it prints as a table and is true where nothing stands in the way.

    Raises:
        ValueError: neither an example nor a plan that knows the fields of the data.
    """
    plan = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
    batch = _batch_of(plan, example)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return _Preflight(model, batch.to(device), forward).report()


def _batch_of(plan: BucketPlan, example: GraphStore | StaticBatch | None) -> StaticBatch:
    if isinstance(example, StaticBatch):
        return example
    if example is None:
        if plan.schema is None:
            raise ValueError(
                "the plan does not say what fields a graph has: pass preflight(model, plan, store)"
            )
        example = _made_up(plan.schema, plan.capacities[0])
    bucket, capacity = next(
        ((b, c) for b, c in enumerate(plan.capacities) if _fitting(example, c)),
        (0, plan.capacities[0]),
    )
    return StaticBatch.of(example, _fitting(example, capacity), capacity, bucket)


def _fitting(store: GraphStore, capacity: Capacity) -> list[int]:
    """The first graphs of a store that together leave some padding of every kind."""
    ids, nodes, edges = [], 0, 0
    for graph, (n, e) in enumerate(store.sizes[:4096].tolist()):
        if len(ids) + 2 >= capacity.graphs:
            break
        fits = nodes + n < capacity.node_limit and edges + e < capacity.edge_limit
        if fits and n <= capacity.max_graph_nodes:
            ids.append(graph)
            nodes, edges = nodes + n, edges + e
    return ids


def _made_up(schema: Schema, capacity: Capacity) -> GraphStore:
    """A few rings with normal numbers, one of a single node."""
    random = np.random.default_rng(0)
    sizes = [1, *random.integers(2, max(3, min(8, capacity.max_graph_nodes + 1)), 5)]
    nodes = np.array([min(n, capacity.max_graph_nodes) for n in sizes], dtype=np.int64)
    edges = np.where(nodes > 1, nodes, 0)
    source = np.concatenate([np.arange(e) for e in edges]).astype(np.int64)
    target = np.concatenate([(np.arange(e) + 1) % max(1, e) for e in edges]).astype(np.int64)
    counts = {"node": nodes.sum(), "edge": edges.sum(), "graph": len(nodes)}
    fields = {}
    for field in schema:
        shape = (counts[field.level] * field.rows, *field.shape)
        numbers = field.dtype.startswith("float")
        made = random.standard_normal(shape) if numbers else np.zeros(shape)
        fields[field.name] = (field.level, made.astype(field.dtype))
    rows = {field.name: field.rows for field in schema if field.level == "graph"}
    return GraphStore.from_arrays(nodes, edges, source, target, fields, rows=rows, name="made up")


class _Preflight:
    """The runs of one preflight, each on a copy of the model."""

    def __init__(self, model: torch.nn.Module, batch: StaticBatch, forward: Forward | None) -> None:
        self._stock = model
        self._batch = batch
        self._forward = forward or forward_of(model)
        self._obstacles: list[Obstacle] = []

    def report(self) -> PreflightReport:
        """All runs, and what they found."""
        ran = self._watched()
        self._host_attributes()
        stopped = any(o.kind == "refused" for o in self._obstacles)
        graphs = 0 if stopped else self._traced()
        inert = {} if stopped else self._measured()
        parity, note = (None, "the model does not run") if stopped else self._compared()
        real = self._batch.real
        held = (real.graphs, real.nodes, real.edges) if real else (0, 0, 0)
        return PreflightReport(
            model=type(self._stock).__name__,
            batch="{} graphs ({} nodes, {} edges) in {}".format(*held, self._batch.capacity),
            modules=tuple(self._row(path, inert.get(path)) for path in ran),
            obstacles=tuple(self._obstacles),
            graphs=graphs,
            parity=parity,
            parity_note=note,
        )

    # ------------------------------------------------------------------ the runs

    def _copy(self) -> tuple[torch.nn.Module, BatchContext, StaticCalls]:
        model = copy.deepcopy(self._stock)
        context = context_of(model)
        return model, context, StaticCalls(model, context)

    def _watched(self) -> list[str]:
        """Runs once under watch; the paths of the modules that ran."""
        model, context, calls = self._copy()
        watch, ran = Watch(), []
        stack: list[str] = []

        def enter(path: str) -> Any:
            def hook(*_: Any) -> None:
                stack.append(path)
                ran.append(path)
                watch.module = path

            return hook

        def leave(*_: Any) -> None:
            stack.pop()
            watch.module = stack[-1] if stack else ""

        for path, module in model.named_modules():
            module.register_forward_pre_hook(enter(path))
            module.register_forward_hook(leave)
        unknown = StaticBatch(self._batch.layout, self._batch.tensors())
        with calls, torch.enable_grad():
            context.enter(unknown)
            try:
                with watch.running():
                    self._forward(model, unknown)
            except Exception as error:  # whatever the model raises is what stands in the way
                self._obstacles += watch.obstacles
                self._obstacles.append(_raised(error, stack[-1] if stack else ""))
            else:
                self._obstacles += watch.obstacles
            finally:
                context.leave()
        leaves = {p for p, m in self._stock.named_modules() if not list(m.children())}
        layers = {p for p, m in self._stock.named_modules() if _is_layer(m)}
        return [p for p in dict.fromkeys(ran) if p and (p in leaves or p in layers)]

    def _host_attributes(self) -> None:
        """Tensors that a module holds as plain attributes: ``.to(device)`` leaves them behind."""
        for path, module in self._stock.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value.device.type == "cpu":
                    self._obstacles.append(
                        Obstacle(
                            f"self.{name}, a tensor that is no buffer",
                            _defined(type(module)),
                            f"class {type(module).__name__}",
                            "host-to-device copy",
                            path,
                        )
                    )

    def _traced(self) -> int:
        model, context, calls = self._copy()

        def compute(batch: StaticBatch) -> Any:
            context.enter(batch)
            out = self._forward(model, batch)
            context.leave()
            return out

        with calls:
            try:
                trace = trace_step(compute, self._batch)
            finally:
                context.leave()
        known = {obstacle.where for obstacle in self._obstacles}
        self._obstacles += [o for o in trace.obstacles if o.where not in known]
        if trace.error is not None and not self._obstacles:
            first = trace.error.strip().splitlines()[0]
            self._obstacles.append(
                Obstacle(first, _defined(type(self._stock)), trace.error, "cannot be traced")
            )
        return trace.graphs if trace.error is None else 0

    def _measured(self) -> dict[str, bool]:
        """For each module whose real inputs stayed the same: whether its real outputs did."""
        clean, poisoned = (self._outputs(b) for b in (self._batch, _poisoned(self._batch)))
        inert: dict[str, bool] = {}
        for path, (inputs, outputs) in clean.items():
            if path not in poisoned or not _same(inputs, poisoned[path][0]):
                continue
            inert[path] = _same(outputs, poisoned[path][1])
        guilty = [
            path
            for path, fine in inert.items()
            if not fine
            and not any(p != path and p.startswith(f"{path}.") and not inert[p] for p in inert)
            and path
        ]
        if not inert.get("", True) and not guilty:
            guilty = [""]
        for path in guilty:
            module = self._stock.get_submodule(path)
            self._obstacles.append(
                Obstacle(
                    type(module).__name__,
                    _defined(type(module)),
                    f"class {type(module).__name__}",
                    "padding reaches real rows",
                    path,
                )
            )
        return inert

    def _outputs(self, batch: StaticBatch) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
        """Real rows of what went into and came out of each module, its first call."""
        model, context, calls = self._copy()
        seen: dict[str, tuple[list[Tensor], list[Tensor]]] = {}

        def note(path: str) -> Any:
            def hook(_: Any, given: Any, out: Any) -> None:
                if path not in seen:
                    seen[path] = _real(given, context), _real(out, context)

            return hook

        for path, module in model.named_modules():
            module.register_forward_hook(note(path))
        torch.manual_seed(0)
        with calls, torch.no_grad():
            context.enter(batch)
            try:
                self._forward(model, batch)
            finally:
                context.leave()
        return seen

    def _compared(self) -> tuple[float | None, str]:
        """The output beside plain PyG's on the same graphs without padding."""
        from torch_geometric.data import Batch

        plain = copy.deepcopy(self._stock)
        graphs: list[Any] = list(self._batch.to_data_list())
        data: Any = Batch.from_data_list(graphs)
        unpadded: Any = _AsBatch(data.to(self._batch.device))
        before = torch.get_rng_state()
        try:
            with torch.no_grad():
                expected = self._forward(plain, unpadded)
        except Exception as error:
            return None, f"plain PyG raised {type(error).__name__}: {error}"
        random = not torch.equal(before, torch.get_rng_state())
        if random:  # dropout draws another pattern over other shapes
            plain = copy.deepcopy(self._stock).eval()
            with torch.no_grad():
                expected = self._forward(plain, unpadded)
        model, context, calls = self._copy()
        if random:
            model.eval()
        with calls, torch.no_grad():
            context.enter(self._batch)
            try:
                found = self._forward(model, self._batch)
                pairs = list(zip(_tensors(expected), _tensors(found), strict=True))
                worst = max((_difference(a, b, context) for a, b in pairs), default=0.0)
            finally:
                context.leave()
        if not worst <= TOLERANCE and not self._obstacles:
            where = _defined(type(self._stock))
            line = f"off by {worst:.1e} of the largest value"
            self._obstacles.append(
                Obstacle(type(self._stock).__name__, where, line, "differs from plain PyG")
            )
        return worst, "evaluation mode, since it draws random numbers" if random else "same mode"

    def _row(self, path: str, inert: bool | None) -> ModuleRow:
        module = self._stock.get_submodule(path)
        table = STATIC_FORMS | REFUSED_FORMS
        form = table.get(type(module))
        if form is None and type(module) in table.values():
            form = type(module)  # converted before
        own = [o for o in self._obstacles if o.module == path]
        if own:
            how = f"{own[0].kind}: {own[0].operation.splitlines()[0][:60]}"
        elif form is StaticGPSConv and isinstance(
            getattr(module, "attn", None), torch.nn.MultiheadAttention
        ):
            asked = context_of(copy.deepcopy(self._stock)).attention
            chosen = attention_path(self._batch.capacity, asked)
            how = f"attention {chosen.name}, {chosen.reason}"
        elif form is not None:
            how = _first_sentence(form)
        else:
            how = "as it is"
        return ModuleRow(path, type(module).__name__, how, inert)


class _AsBatch:
    """A PyG ``Batch`` that can be asked for a model's arguments as a StaticBatch can."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def __getitem__(self, name: str) -> Any:
        return self._data[name]

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def argument(self, name: str) -> Any:
        """What a model's parameter of this name gets; None if there is nothing for it."""
        return getattr(self._data, name, None)


def _first_sentence(form: type) -> str:
    """Of a static form's docstring, without what the row of the table says anyway."""
    text = " ".join((form.__doc__ or form.__name__).split()).replace("``", "")
    sentence = re.split(r"\.(?: |$)", text)[0]
    sentence = sentence.split(": ", 1)[-1] if ": " in sentence else sentence.split("; ", 1)[-1]
    return sentence.removeprefix("Takes the place of ").removesuffix(", with the same state")


def _is_layer(module: torch.nn.Module) -> bool:
    kind = type(module)
    table = STATIC_FORMS | REFUSED_FORMS
    return kind in table or kind in table.values() or kind.__module__.startswith("torch_geometric.")


def _raised(error: Exception, module: str) -> Obstacle:
    """An exception as an obstacle, at the innermost line that belongs to the model."""
    frames = traceback.extract_tb(error.__traceback__)
    names = ("/torch/", "/torch_geometric/", "/staticgraph/", "/jinja2/")
    own = [f for f in frames if not any(name in f.filename for name in names)]
    frame = (own or frames)[-1]
    kind = "refused" if isinstance(error, NotStatic) else "cannot be traced"
    text = str(error) if isinstance(error, NotStatic) else f"{type(error).__name__}: {error}"
    return Obstacle(text, f"{frame.filename}:{frame.lineno}", frame.line or "", kind, module)


def _defined(kind: type) -> str:
    """``file:line`` of a class."""
    import inspect

    try:
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        return kind.__module__


def _poisoned(batch: StaticBatch) -> StaticBatch:
    """The batch with garbage in every padding row, for integers the values of real rows."""
    random = torch.Generator().manual_seed(0)
    tensors = {}
    for field in batch.layout.schema:
        value = batch[field.name]
        mask = batch[f"{field.level}_mask"]
        if field.rows > 1:
            mask = mask.repeat_interleave(field.rows)
        if value.is_floating_point():
            garbage = torch.randn(value.shape, generator=random) * GARBAGE
        else:  # other rows' values: a table looked up with them has an entry for each
            real = torch.where(mask)[0]
            drawn = torch.randint(0, max(1, len(real)), (len(value),), generator=random)
            garbage = value[real[drawn.to(real.device)]] if len(real) else value
        wide = mask.view(-1, *(1,) * (value.dim() - 1))
        tensors[field.name] = torch.where(wide, value, garbage.to(value))
    return batch.replace(**tensors)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _real(value: Any, context: BatchContext) -> list[Tensor]:
    """The real rows of each tensor whose rows are known."""
    found = []
    for tensor in _tensors(value):
        rows = context.find_rows(tensor.shape[0]) if tensor.dim() else None
        if rows is None or not tensor.is_floating_point():
            continue
        if tensor.untyped_storage().size():  # an invertible layer frees what it was given
            found.append(tensor.detach()[rows.mask].clone())
    return found


def _same(left: list[Tensor], right: list[Tensor]) -> bool:
    if [t.shape for t in left] != [t.shape for t in right]:
        return False
    return all(_relative(a, b) <= TOLERANCE for a, b in zip(left, right, strict=True))


def _difference(expected: Tensor, found: Tensor, context: BatchContext) -> float:
    """Relative to the largest; infinite where the real rows are not as many."""
    rows = context.find_rows(found.shape[0]) if found.dim() else None
    real = found if rows is None else found[rows.mask]
    return _relative(expected, real) if expected.shape == real.shape else float("inf")


def _relative(expected: Tensor, found: Tensor) -> float:
    if not expected.numel():
        return 0.0
    if not expected.is_floating_point():
        return 0.0 if torch.equal(expected, found) else float("inf")
    scale = max(float(expected.abs().max()), 1e-6)
    off = float((expected - found).abs().max()) / scale
    return off if off == off else float("inf")
