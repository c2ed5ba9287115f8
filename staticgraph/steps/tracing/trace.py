"""A step captured as by torch.compile, without being compiled: how many graphs, which obstacles.

``torch.compile`` with Inductor takes tens of seconds; tracing alone takes about one. The backend
here only inspects the captured graph and then runs it as it is, operation by operation, so that one
call tells both whether the step is static and what numbers it computes.

A model that fails is an obstacle, too: at which line of the model, and briefly why.
"""

from __future__ import annotations

import gc
import inspect
import linecache
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import NotStatic
from staticgraph.internals.tracing import (
    drop_guards,
    forget_compiled,
    guards_not_timed,
    switched,
)
from staticgraph.steps.tracing.obstacles import KINDS, Obstacle, obstacles


@dataclass(slots=True)
class Trace:
    """What tracing a step found.

    Attributes:
        result: what the step returned, or None if it could not be traced.
        graphs: how many graphs were captured; a static step is one.
        obstacles: the operations that depend on data.
        error: why tracing stopped, in torch's words or in those of NotStatic.
        observed: the exception of the model that stopped torch.compile, if there was one.
    """

    result: Any = None
    graphs: int = 0
    obstacles: list[Obstacle] = field(default_factory=list)
    error: str | None = None
    observed: str | None = None

    @property
    def static(self) -> bool:
        """Whether the step is one graph of fixed shapes."""
        return self.error is None and self.graphs == 1 and not self.obstacles


def trace_step(compute: Callable[[StaticBatch], Any], batch: StaticBatch) -> Trace:
    """Captures ``compute(batch)`` as a compiled step would see it: without counts on the host.

    Nothing that ``compute`` changes (gradients, buffers) is restored.
    """
    trace = Trace()
    layout, names = batch.layout, tuple(batch.tensors())

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        """Stands in for a compiler: notes obstacles, and runs the graph as it is."""
        trace.graphs += 1
        drop_guards(lambda kind, name: True)  # a graph that is called once needs no guards
        trace.obstacles += obstacles(graph)
        return graph.forward

    def step(*tensors: Tensor) -> Any:
        """Computes over a batch of these tensors."""
        return compute(StaticBatch(layout, dict(zip(names, tensors, strict=True))))

    forget_compiled()
    try:
        with warnings.catch_warnings(), tracing_options():
            warnings.simplefilter("ignore")
            compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=look)
            trace.result = compiled(*batch.tensors().values())
    except NotStatic as error:
        trace.error = str(error)
    except Exception as error:  # whatever the model or torch raises during the trace
        trace.error = str(cause_of(error))
        trace.observed = observed(error)
    return trace


def cause_of(error: BaseException) -> BaseException:
    """Returns the NotStatic that tracing wrapped, if there is one; else the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        inner = getattr(seen, "inner_exception", None)
        if isinstance(seen, NotStatic):
            return seen
        if isinstance(inner, NotStatic):
            return inner
        seen = seen.__cause__ or seen.__context__
    return error


_LOGS = ("torch._subclasses.fake_tensor", "torch._guards")


@contextmanager
def tracing_options() -> Iterator[None]:
    """A ``with`` block for tracing, with ``torch.autograd.grad`` and recurrent layers in one graph.

    Forces need the former; recurrent layers run as unrolled cells; a model warns in eager runs
    alone. The switches are torch's own, from 2.11 on; a missing one is skipped, and tracing then
    reports what it cannot do. A trace makes a million objects that live until it ends, so garbage
    collection is off meanwhile; it took a tenth of the time. What an operation raises over tensors
    without values is in the error of the trace, and so is what a guard raises, so torch's logs do
    not print their stacks as well.
    """
    collects, logs = gc.isenabled(), [logging.getLogger(name) for name in _LOGS]
    gc.disable()
    silent = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        options = {"trace_autograd_ops": True, "allow_rnn": True, "run_gc_after_compile": False}
        with switched(**options, ignore_logging_functions={warnings.warn}), guards_not_timed():
            yield
    finally:
        for log, was in zip(logs, silent, strict=True):
            log.disabled = was
        if collects:
            gc.enable()


_LIBRARIES = ("/torch/", "/torch_geometric/", "/staticgraph/", "/jinja2/")
_OBSERVED = re.compile(r"raised exception (\w+\(.+\))")
# How torch writes what an operation raised over tensors without values.
_FAKES = re.compile(r"got (\w+\(.+\))$", re.MULTILINE)
# And how torch 2.15 does.
_FAKES_OBSERVED = re.compile(
    r"raised exception .* with fake tensors: .*: got (\w+\(.+\))'\)$", re.MULTILINE
)
# How torch 2.11 writes the exception's text inside that.
_CONSTANT = re.compile(r"\(\[ConstantVariable\(\w+: (.+)\)\]\)")
# What an exception's text suggests as its cause; the first match counts.
_ADVICE = (
    (
        r"NoneType|be Tensor, not None",
        "print(store) lists the fields of the data: x, y, pos, edge_attr and edge_weight are None "
        "where the data have none, as in PyG",
    ),
    (
        r"same dtype|scalar type|Float and Double|not implemented for '",
        "print(store) tells each field's dtype: model.double() for float64 data, x.float() in the "
        "forward for integers",
    ),
    (
        r"does not require grad|have been used in the graph",
        "a model that differentiates by a field (torch.autograd.grad) needs it named: "
        "StaticGraphRunner(..., differentiable=('pos',)), in prediction as well",
    ),
    (
        r"index out of range|out of bounds",
        "a table has fewer rows than the field has categories: print(store.x.max()) of the field "
        "that it looks up; or a node's number within its graph (root + batch.ptr[:-1]) is taken of "
        "a padding graph, which may have no nodes: name the field root_index, which counts nodes "
        "of the batch, or clamp(max=x.size(0) - 1)",
    ),
    (
        r"shape \W*\[.*\]\W* is invalid for input of size|don't multiply up to the size of dim 0",
        "x.view(-1, n, F) for graphs of n nodes each needs a bucket with n nodes for each of its "
        "graphs, padding graphs included: plan_buckets(store) makes such, by hand (n * graphs, "
        "edges, graphs); a number of rows must follow from a shape or the batch "
        "(batch.num_graphs)",
    ),
    (
        r"mat1 and mat2 shapes|size of tensor|invalid for input of size|Expected size|shape",
        "print(store) tells each field's width; a number of rows must follow from a shape "
        "(x.size(0)) or the batch (batch.num_graphs), not from one batch",
    ),
)
_MAKES_DATA = re.compile(r"\b(Hetero)?(Data|Batch)(\(|' object)")
_OF_DATA = (
    "the model makes a PyG Data or Batch inside its forward, whose attributes torch.compile cannot "
    "follow: hand the tensors on themselves, conv(x, edge_index); or mode='eager'"
)
# Messages of torch; before 2.12 the second.
_ASKS_DERIVATIVE = ("source-less requires_grad_()", "Unsupported Tensor.requires_grad_() call")
_DERIVED = (
    "a tensor that the forward makes asks for its own derivative: ask it of the input itself "
    "(pos = pos.requires_grad_(), without detach() or clone() before), and name the field: "
    "differentiable=(\"pos\",); or mode='eager'"
)
# The advice of a compiled step that met another value than it was traced with.
KEEP_IN_TENSORS = (
    "Keep a number that changes between steps in a tensor, and write to it in place "
    "(tensor.fill_(value)); call warmup() again after a change of anything else; or use "
    "mode='eager'"
)
# Messages of torch about a number or a size that is data.
_ON_DATA = re.compile(r"data-dependent (expression|symbol)|unbacked symbol", re.IGNORECASE)
_OF_SPARSE = (
    "torch.compile does not follow sparse tensors: sum over edges, as a MessagePassing layer or "
    "scatter(h[edge_index[0]], edge_index[1], 0, h.size(0)) does; or mode='eager'"
)
_FOLLOWS = "a number or a size here follows from data: {}; or use mode='eager'".format(
    KINDS["host read"][1]
)
# Process-wide settings that torch.compile traces for, by torch's names, and the calls that set
# them.
_SETTINGS = {
    "num_threads": "torch.set_num_threads",
    "default_dtype": "torch.set_default_dtype",
    "deterministic_algorithms": "torch.use_deterministic_algorithms",
    "allow_tf32": "torch.set_float32_matmul_precision",
    "cuda_matmul_precision": "torch.set_float32_matmul_precision",  # torch 2.15
}
_SETTING = re.compile(r"GLOBAL_STATE changed: (\w+)")
# The value of the model that a guard compares, and the line that reads it.
_GUARD = re.compile(
    r"- \d+/\d+: (?:___check_\w+\()?run\.__self__\._(?P<guard>model\..+?)(?:, \d+\).*?)? +"
    r"# (?P<line>.+?) +# "
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def raised(error: Exception, module: str) -> Obstacle:
    """Returns an exception as an obstacle, at the innermost line that belongs to the model."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = ([f for f in frames if _of_model(f.filename)] or frames)[-1]
    kind = "refused" if isinstance(error, NotStatic) else "the model raises"
    text = str(error) if isinstance(error, NotStatic) else f"{type(error).__name__}: {error}"
    where = f"{frame.filename}:{frame.lineno}"
    advice = None if kind == "refused" else advice_for(error)
    return Obstacle(text, where, frame.line or "", kind, module, advice)


def advice_for(error: BaseException) -> str:
    """Returns advice for an exception of the model; empty if its own text must do."""
    text = str(error)
    for pattern, advice in _ADVICE:
        if re.search(pattern, text):
            return advice
    return ""


def advise(error: BaseException) -> None:
    """Adds what to do to an exception in torch's own words, as a note that a traceback shows."""
    if type(error) not in (RuntimeError, TypeError, IndexError, AttributeError):
        return
    advice = advice_for(error)
    if advice and advice not in getattr(error, "__notes__", ()):
        error.add_note(advice)


def untraceable(message: str, model: type, seen: str | None = None) -> Obstacle:
    """Returns torch.compile's failure as an obstacle, in the first words of its message.

    The place is the innermost line of the model that the message names, or the model's class if it
    names none.

    Args:
        message: torch's message.
        model: the model's class.
        seen: the exception of the model that torch met, if any.
    """
    lines = [line.strip() for line in message.strip().splitlines()]
    words = [lines[0] if lines else "torch.compile gave no reason"]
    words += [line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")]
    frames = [(m["file"], int(m["line"])) for m in _FRAME.finditer(message)]
    frames = [f for f in frames if "/staticgraph/" not in f[0]]
    of_model = [f for f in frames if _of_model(f[0])] or frames
    where = f"{of_model[-1][0]}:{of_model[-1][1]}" if of_model else defined_at(model)
    source = linecache.getline(*of_model[-1]).strip() if of_model else f"class {model.__name__}"
    known = remedy(message)
    if raised_inside := _FAKES.search("\n".join(words)) or _FAKES_OBSERVED.search(message):
        words = [raised_inside[1]]
        known = known or advice_for(RuntimeError(words[0])) or None
    makes = _MAKES_DATA.search(source) or _MAKES_DATA.search(seen or "")
    inside = any("/torch_geometric/data/" in file for file, _ in frames)
    advice = _OF_DATA if makes or inside else known
    if seen is not None:
        return Obstacle(seen, where, source, "raises while it is traced", "", advice)
    return Obstacle(": ".join(words[:2]), where, source, "cannot be traced", "", advice)


def why_not_compiled(error: Exception, seen: str | None) -> str:
    """Returns torch.compile's failure in short: why, at which line of the model, and what to do.

    torch's own message is a page of hints and frames.

    Args:
        error: torch's exception.
        seen: the exception of the model or the loss that torch met, if any.
    """
    message = str(error)
    obstacle = untraceable(message, type(error), seen)
    raises = "the loss raises" if "/staticgraph/steps/loss/" in message else "the model raises"
    lines = [f"{raises} {seen}" if seen else obstacle.operation]
    if lines[0].endswith(":"):  # of an exception without a text
        last = traceback.extract_tb(error.__traceback__)[-1]
        lines[0] += f" raised by {last.name}, {last.filename}:{last.lineno}"
    if any(_of_model(match["file"]) for match in _FRAME.finditer(message)):
        lines.append(f"{obstacle.where}: {obstacle.line}")
    own = (seen or "").startswith(NotStatic.__name__)  # whose text says what to do
    if (obstacle.advice and not own) or not seen:
        lines.append(obstacle.advice or "Give the operation a static form, or use mode='eager'")
    return "\n".join([*lines, "torch's own text: str(error.__context__)"])


def remedy(message: str) -> str | None:
    """Returns what to write instead of what stopped torch.compile; None if unknown."""
    if any(words in message for words in _ASKS_DERIVATIVE):
        return _DERIVED
    if re.search("sparse_|sparse Tensor", message):
        return _OF_SPARSE
    return _FOLLOWS if _ON_DATA.search(message) else None


def failed_guard(changed: str) -> str | None:
    """Returns what no longer holds, and where the model reads it, from torch's message of a
    recompilation; None if it does not say."""
    guard = _GUARD.search(changed)
    if guard is None:
        return None
    what = guard["guard"].strip()
    changed = "no longer holds" if " " in what else "is another"
    return f"{what} {changed} ({guard['line'].strip()!r} reads it)"


def of_setting(changed: str) -> str | None:
    """Returns what to do if a process-wide setting changed since the trace; else None."""
    setting = _SETTING.search(changed)
    if setting is None or setting[1] not in _SETTINGS:
        return None
    return (
        f"A compiled step is traced for torch's settings as they are: call {_SETTINGS[setting[1]]} "
        "before warmup() and the first step, and put it back around what needs another, such as a "
        "validation of your own; or use mode='eager'"
    )


def observed(error: BaseException | None) -> str | None:
    """Returns the exception of the model or the loss that torch.compile met while tracing.

    The text is that of torch's message; None if tracing stopped for another reason.
    """
    while error is not None:
        exception = _OBSERVED.search(str(error))
        if exception and not _FAKES_OBSERVED.search(exception[0]):
            return _CONSTANT.sub(r"(\1)", exception[1])
        error = error.__cause__ or error.__context__
    return None


def defined_at(kind: Any) -> str:
    """Returns ``file:line`` of a class or a function."""
    try:
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        return kind.__module__


def _of_model(file: str) -> bool:
    return not any(name in file for name in _LIBRARIES)
