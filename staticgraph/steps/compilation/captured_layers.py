"""The layers of a step that is no single graph, each captured and rewritten by itself.

The problem: one line that reads a number off the data, or that no tracer follows, keeps a whole
step from mode ``fused``, although its layers are fused elsewhere. The idea: the step runs in
eager, and in place of each layer's forward a captured one is called, as large a layer as can be
captured, the model itself where the line is the loss's; one in which nothing is rewritten stays as
it is.

Invariant: a captured layer gets all that it computes with as arguments: the tensors and constants
that the model calls it with, and the batch's arrays. Where it makes rows that later layers would
have to know of (a pool), or gets anything else, it runs in eager.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import TreeSpec, tree_flatten, tree_unflatten
from staticgraph.internals.fakes import FakeTensor
from staticgraph.internals.hooks import saves_are_hooked
from staticgraph.nn.context.bound_batch import Restored, present, traced_here
from staticgraph.nn.context.leaf_calls import FACTS
from staticgraph.steps.compilation.compiled_function import CompiledFunction
from staticgraph.steps.compilation.modes import FUSED, Mode
from staticgraph.steps.computation.computation import Computation

# Forms of arguments per bucket, beyond which a layer stays in eager: its shapes follow the data.
MOST_FORMS = 4
# What is not worth a captured layer where nothing else is rewritten.
_ALONE = {"batch_norm", "dropout_sum", "linear", "cat_linear"}
_CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.Size)


class Form(NamedTuple):
    """What the trace of a layer depends on: as of a key, how arguments are nested, and which of
    them are arrays of the batch, constants, or tensors of which shape."""

    bucket: int
    training: bool
    grad: bool
    autocast: torch.dtype | None
    spec: TreeSpec
    arguments: tuple[Any, ...]


class CapturedLayers:
    """Captures a model's layers as they are first called.

    Args:
        model: its layers.
        computation: of the model.

    Attributes:
        functions: what was captured, by the layer's path and the form of its arguments.
        frozen: whether arguments of another form run in eager from now on.
    """

    def __init__(self, model: nn.Module, computation: Computation) -> None:
        self.functions: dict[tuple[str, Form], CompiledFunction] = {}
        self.frozen: bool = False
        self._computation = computation
        self._layers: dict[nn.Module, _Layer] = {}
        self._paths = {module: path or "the model" for path, module in model.named_modules()}
        self._installed = False
        self._add(model)

    @property
    def paths(self) -> list[str]:
        """The paths of the captured layers."""
        return list(dict.fromkeys(path for path, _ in self.functions))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A ``with`` block in which captured layers run in place of the model's own."""
        self._installed = True
        for layer in self._layers.values():
            layer.install()
        try:
            yield
        finally:
            self._installed = False
            for layer in self._layers.values():
                layer.uninstall()

    def _add(self, module: nn.Module) -> None:
        """Adds a module, or the outermost ones inside it where it is one of torch's, or somebody
        replaced its forward; none without parts."""
        if module in self._layers:
            return
        if type(module).__module__.startswith("torch.nn.") or "forward" in vars(module):
            self._add_below(module)
        elif next(module.children(), None) is not None:
            self._layers[module] = _Layer(self, self._paths[module], module)
            if self._installed:
                self._layers[module].install()

    def _add_below(self, module: nn.Module) -> None:
        for child in module.children():
            self._add(child)

    def give_up(self, layer: _Layer, below: bool = True) -> None:
        """Leaves a layer to eager, and tries those inside it instead, if ``below``."""
        layer.uninstall()
        del self._layers[layer.module]
        self.functions = {
            key: function for key, function in self.functions.items() if key[0] != layer.path
        }
        if below:
            self._add_below(layer.module)

    def forget(self, bucket: int) -> None:
        """Forgets what was captured for one bucket."""
        keys = [key for key in self.functions if key[1].bucket != bucket]
        self.functions = {key: self.functions[key] for key in keys}
        for layer in self._layers.values():
            layer.forget(bucket)

    def capture(self, layer: _Layer, arguments: _Arguments, form: Form) -> CompiledFunction:
        """Returns the function of a layer for arguments of one form, not compiled yet."""
        binding = present()
        assert binding is not None
        batch = binding.batch
        function = self._computation.of_layer(layer.forward, batch, arguments.rebuild)
        name = f"bucket {batch.bucket} {layer.path}"
        captured = CompiledFunction(
            function, Mode(FUSED, "as asked"), name, batch.layout, batch.device.type
        )
        self.functions[layer.path, form] = captured
        return captured


class _Layer:
    """Stands for a layer's forward."""

    def __init__(self, layers: CapturedLayers, path: str, module: nn.Module) -> None:
        self.path: str = path
        self.module: nn.Module = module
        self.forward: Any = module.forward
        self._layers = layers
        self._forms: Counter[tuple[Any, ...]] = Counter()

    def install(self) -> None:
        """Takes the place of the module's forward."""
        vars(self.module)["forward"] = self

    def uninstall(self) -> None:
        """Gives it back."""
        vars(self.module).pop("forward", None)

    def forget(self, bucket: int) -> None:
        """Forgets how many forms of arguments there were in one bucket."""
        for state in [state for state in self._forms if state[0] == bucket]:
            del self._forms[state]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer, captured if it can be."""
        # As a part of another one, or of a checkpoint, whose backward runs the layer's own forward.
        if traced_here() or saves_are_hooked():
            return self.forward(*args, **kwargs)
        binding, layers = present(), self._layers
        arguments = None if binding is None else _Arguments.take_apart(binding.batch, args, kwargs)
        if binding is None or arguments is None:
            if binding is not None and not layers.functions:  # perhaps it is given a whole batch
                layers.give_up(self)
            return self.forward(*args, **kwargs)
        batch = binding.batch
        device = batch.device.type
        form = Form(
            batch.bucket,
            self.module.training,
            torch.is_grad_enabled(),
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
            arguments.spec,
            arguments.form,
        )
        function = layers.functions.get((self.path, form))
        new = function is None
        if function is None:
            if layers.frozen:
                return self.forward(*args, **kwargs)
            self._forms[form[:4]] += 1
            if self._forms[form[:4]] > MOST_FORMS:
                layers.give_up(self, below=False)
                return self.forward(*args, **kwargs)
            function = layers.capture(self, arguments, form)
        arrays = function.layout.in_order(batch.layout, batch.tensors())
        try:
            with Restored(nothing=True):
                out = function(*arrays, *arguments.tensors)
        except NotStatic as error:
            if not new:
                warnings.warn(f"{self.path} is no longer fused: {error}", stacklevel=2)
            layers.give_up(self, below=not layers.frozen)
            return self.forward(*args, **kwargs)
        if new and {place.rewrite for place in function.done} <= _ALONE:
            layers.give_up(self)
        return out


class _Arguments:
    """What a layer is called with: the batch's own arrays, other tensors, and constants.

    Attributes:
        tensors: the other tensors.
        form, spec: as of :class:`Form`.
    """

    def __init__(self, tensors: list[Tensor], form: tuple[Any, ...], spec: TreeSpec) -> None:
        self.tensors: list[Tensor] = tensors
        self.form: tuple[Any, ...] = form
        self.spec: TreeSpec = spec

    @classmethod
    def take_apart(cls, batch: Any, args: Any, kwargs: Any) -> _Arguments | None:
        """Takes arguments apart; None if there is one that a trace cannot take."""
        leaves, spec = tree_flatten((args, kwargs))
        facts = {name: array for name, array in batch.tensors().items() if name in FACTS}
        names = {id(array): name for name, array in facts.items()}
        tensors: list[Tensor] = []
        form: list[Any] = []
        for leaf in leaves:
            if id(leaf) in names:
                form.append(("own", names[id(leaf)]))
            elif type(leaf) in (Tensor, nn.Parameter):
                tensors.append(leaf)
                form.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad))
            elif isinstance(leaf, Tensor) and (name := _fact_of(leaf, facts)):
                form.append(("own", name))
            elif isinstance(leaf, _CONSTANTS):
                # 1, 1.0 and True are equal, as are zeros of both signs.
                form.append(("constant", leaf, type(leaf), repr(leaf)))
            else:
                return None
        return cls(tensors, tuple(form), spec)

    def rebuild(self, arrays: dict[str, Tensor], tensors: tuple[Tensor, ...]) -> Any:
        """Returns the arguments made of a batch's arrays and other tensors."""
        others, leaves = iter(tensors), []
        for kind in self.form:
            if kind[0] == "own":
                leaves.append(arrays[kind[1]])
            else:
                leaves.append(kind[1] if kind[0] == "constant" else next(others))
        return tree_unflatten(leaves, self.spec)


def _fact_of(leaf: Tensor, facts: dict[str, Tensor]) -> str | None:
    """Which array of a batch this is, marked to know its own sizes; None if it is none of them."""
    if isinstance(leaf, FakeTensor):
        return None
    names = (name for name, fact in facts.items() if _place(fact) == _place(leaf))
    return next(names, None)


def _place(array: Tensor) -> tuple[Any, ...]:
    return array.data_ptr(), array.dtype, array.shape, array.stride()
