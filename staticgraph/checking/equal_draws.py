"""Random numbers that are equal on both sides of a comparison, and ties that break alike.

A padded batch and plain PyG's draw over other shapes, so a generator gives their real rows other
numbers. Inside :class:`EqualDraws` a number depends on the draw and on its position alone, by a
hash. A position counts real rows before padding rows, so that a real row draws what it draws
without padding.

Ties are broken in the same way on both sides (:class:`Jitter`). A model that chooses among rows
(TopK, a maximum, a sort) chooses by rounding if two are equal, as symmetric atoms of a molecule
are, and sums over padded rows round differently from those over real ones. Such a difference is not
caused by the padding. It vanishes when no two rows are equal, so noise is added to the nodes' float
fields, to what embeddings and linear layers compute for nodes, to the scores of pools, which a
saturated ``tanh`` makes equal, and to the rows of sorts, which a ReLU does. A real row gets the
same noise with padding and without.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.dispatch import (
    TorchDispatchMode,
    current_graph_task,
    tree_leaves,
    tree_map_only,
)
from staticgraph.nn.context.bound_batch import present

# Dropout keeps a value by it, and a normal number is positive.
CONSTANT = 0.9
# A model that draws until a number fits would never end where all numbers are equal.
MOST_DRAWS = 1_000
_BITS = (1 << 52) - 1
DROPOUT = "staticgraph::dropout_sum"
# This library's operators that draw by a seed of their own.
ATTENTION = "staticgraph::graph_attention"
SEEDED = {DROPOUT, ATTENTION, f"{ATTENTION}_backward"}


class Draw(NamedTuple):
    """One operation that drew random numbers.

    Attributes:
        name: of the operation.
        shape: of what it drew.
        real: the same, with real rows alone.
        hashed: whether its numbers depend on their positions alone; otherwise they come from a
            generator, and are equal for equal shapes.
    """

    name: str
    shape: tuple[int, ...]
    real: tuple[int, ...]
    hashed: bool

    def matches(self, padded: Draw) -> bool:
        """Whether a draw without padding gave the numbers of a padded one's real rows."""
        if self.name != padded.name or len(self.shape) != len(padded.shape):
            return False
        sizes = zip(self.shape, padded.shape, padded.real, strict=True)
        if not self.hashed:
            return self.shape == padded.shape
        return all(plain in (size, real) for plain, size, real in sizes)


class EqualDraws(TorchDispatchMode):
    """While entered, draws by position.

    Args:
        constant: whether all uniform numbers are :data:`CONSTANT` instead: equal on two sides that
            do not draw in the same order, or for rows that cannot be matched.

    Attributes:
        draws: the operations that drew so far.

    Raises:
        RuntimeError: more than :data:`MOST_DRAWS` draws of constants.
    """

    supports_higher_order_operators = True

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        self.draws: list[Draw] = []
        self._constant = constant

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(getattr(func, "_schema", None), "name", "")
        if name in SEEDED and args[-1]:
            return self._draw_by_seed(func, args)
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        with torch.no_grad():
            return self._draw(func, args, kwargs)

    def _draw(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        # Every operation takes one number of torch's generator, whatever it draws.
        before = torch.get_rng_state()
        seed = int(torch.randint(1 << 62, ()))
        name = func._schema.name.removeprefix("aten::").rstrip("_").removesuffix("_like")
        parts = func._schema.arguments
        arguments = {part.name: part.default_value for part in parts if part.has_default_value()}
        arguments |= dict(zip((part.name for part in parts), args, strict=False)) | kwargs
        value_of = VALUES.get(name)
        torch.manual_seed(seed)
        started = _generators(arguments)
        result = func(*args, **kwargs)
        if value_of is None and started == _generators(arguments):
            torch.set_rng_state(before)
            return result
        torch.manual_seed(seed)
        first = result[0] if isinstance(result, tuple) else result
        if not (self._constant and name == "randint" and first.shape == (1,)):  # not a seed
            self._note(name, first, value_of is not None)
        if value_of is None:
            return result
        value = value_of(self._uniform(first, seed), arguments)
        if isinstance(value, tuple):  # dropout, and what it keeps
            result[1].copy_(value[1])
        first.copy_(value[0] if isinstance(value, tuple) else value)
        return result

    def _note(self, name: str, drawn: Tensor, hashed: bool) -> None:
        real = tuple(map(_real_size, drawn.shape))
        self.draws.append(Draw(name, tuple(drawn.shape), real, hashed))
        if self._constant and len(self.draws) > MOST_DRAWS:
            raise RuntimeError(f"{name} is drawn until a number is another, and all are equal here")

    def _draw_by_seed(self, func: Any, args: Any) -> Any:
        """Runs a kernel that drops by a seed and the position in a bucket; ``p`` is its last."""
        if current_graph_task() == -1:  # a backward repeats the draw
            self._note("bernoulli", args[0], self._constant)
        if not self._constant:
            return func(*args)
        *others, p = args
        if func._schema.name == ATTENTION:  # of the weights, and results are sums over these
            out, lse = func(*others, 0.0)
            return out / (1 - p), lse
        if func._schema.name != DROPOUT:
            others[2] = others[2] * (1 - p)  # the result without dropout
        return func(others[0] / (1 - p), *others[1:], 0.0)

    def _uniform(self, like: Tensor, seed: int) -> Tensor:
        """Returns float64 numbers between 0 and 1, of the shape and on the device of a tensor."""
        if self._constant:
            return torch.full_like(like, CONSTANT, dtype=torch.float64)
        code = torch.tensor(seed, device=like.device)
        for size in like.shape:
            code = _mixed(code[..., None] + _positions(size, like.device))
        return ((code & _BITS).double() + 0.5) / (_BITS + 1)


def _generators(arguments: dict[str, Any]) -> tuple[bytes, list[int]]:
    """The states of torch's generators, of CUDA's only where an operation runs there."""
    offsets = [
        torch.cuda.default_generators[value.device.index or 0].get_offset()
        for value in arguments.values()
        if isinstance(value, Tensor) and value.is_cuda
    ]
    return torch.get_rng_state().numpy().tobytes(), offsets


def _real_size(size: int) -> int:
    binding = present()
    rows = None if binding is None else binding.rows.get(size)
    return size if rows is None else int(rows.mask.sum())


def _positions(size: int, device: torch.device) -> Tensor:
    """``[size]`` int64: the positions along a dimension, those of real rows first."""
    binding = present()
    rows = None if binding is None else binding.rows.get(size)
    if rows is None:
        return torch.arange(size, device=device)
    real = rows.mask.to(device)
    return torch.where(real, real.cumsum(0), real.sum() + (~real).cumsum(0)) - 1


def _mixed(code: Tensor) -> Tensor:
    """Mixes the bits of int64 numbers (Murmur3's finalizer)."""
    code = (code ^ (code >> 33)) * -0xAE502812AA7333
    code = (code ^ (code >> 33)) * -0x3B314601E57A13AD
    return code ^ (code >> 33)


def _integers(uniform: Tensor, arguments: dict[str, Any]) -> Tensor:
    low = arguments.get("low", 0)
    return (low + uniform * (arguments["high"] - low)).floor()


def _exponential(uniform: Tensor, arguments: dict[str, Any]) -> Tensor:
    return -torch.log1p(-uniform) / arguments["lambd"]


def _dropout(uniform: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    x, p = arguments["input"], arguments["p"]
    if not arguments["train"]:
        return x, torch.ones_like(uniform)
    keeps = 1 - uniform < 1 - p
    return torch.where(keeps, x / (1 - p), 0), keeps


def _normal(uniform: Tensor, arguments: dict[str, Any]) -> Tensor:
    return arguments["mean"] + arguments["std"] * torch.special.ndtri(uniform)


def _bernoulli(uniform: Tensor, arguments: dict[str, Any]) -> Tensor:
    return 1 - uniform < arguments.get("p", arguments["self"])  # so that the constant keeps


def _between(uniform: Tensor, arguments: dict[str, Any]) -> Tensor:
    return arguments["from"] + (arguments["to"] - arguments["from"]) * uniform


# From uniform numbers and the operation's arguments to its result.
VALUES: dict[str, Callable[[Tensor, dict[str, Any]], Any]] = {
    "bernoulli": _bernoulli,
    "exponential": _exponential,
    "native_dropout": _dropout,
    "normal": _normal,
    "rand": lambda uniform, _: uniform,
    "randint": _integers,
    "randn": lambda uniform, _: torch.special.ndtri(uniform),
    "randperm": lambda uniform, _: uniform.argsort(stable=True),
    "uniform": _between,
}


# Of a tensor's largest value: far above rounding, far below the effect of another input.
SIZE = 1e-2
# PyG's Linear included, by its name.
_MIXES = ("Linear", "Embedding")


class Jitter:
    """Noise for the rows of one batch, where the first run had any: a layer of static form may
    compute for all nodes what PyG's computes for some.

    Args:
        batch: its real nodes get noise, its padding none.
    """

    def __init__(self, batch: StaticBatch) -> None:
        self._places: set[str] | None = None  # of the first run
        self._rows = batch.capacity.nodes
        self._real = batch.real_counts.nodes
        self._fields = [
            field.name
            for field in batch.layout.schema
            if field.level == "node" and not field.is_index
        ]

    @contextmanager
    def on(self, model: torch.nn.Module) -> Iterator[None]:
        """A ``with`` block in which noise is added to what the model computes for nodes."""
        noisy: set[str] = set()
        with ExitStack() as stack:
            for path, module in model.named_modules():
                kinds = {kind.__name__ for kind in type(module).__mro__}
                if not kinds.isdisjoint(_MIXES):
                    stack.callback(module.register_forward_hook(self._hook(path, noisy)).remove)
                elif "SelectTopK" in kinds and isinstance(module.act, torch.nn.Module):
                    stack.callback(module.act.register_forward_hook(_NoiseByRow(path).after).remove)
                elif "SortAggregation" in kinds:
                    stack.callback(
                        module.register_forward_pre_hook(_NoiseByRow(path).before).remove
                    )
            yield
        if self._places is None:
            self._places = noisy

    def set_noise(self, batch: Any) -> Any:
        """Sets the noisy fields on a batch, with padding or without, and returns it."""
        for name in self._fields:
            value = getattr(batch, name)
            if value.is_floating_point():
                batch[name] = self._noisy(value, name)
        return batch

    def _hook(self, path: str, noisy: set[str]) -> Any:
        calls = 0

        def hook(_: torch.nn.Module, inputs: Any, out: Any) -> Any:
            """Adds this call's noise to the output of a module, if it is a tensor of nodes."""
            nonlocal calls
            calls += 1
            name = f"{path} {calls}"
            if not isinstance(out, Tensor) or not out.dim():
                return None
            if self._places is not None and name not in self._places:
                return None
            changed = self._noisy(out, name)
            if changed is not out:
                noisy.add(name)
            return changed

        return hook

    def _noisy(self, value: Tensor, name: str) -> Tensor:
        if value.shape[0] not in (self._rows, self._real):
            return value
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        drawn = torch.rand((self._real, *value.shape[1:]), generator=random, dtype=torch.float64)
        largest = value[: self._real].detach().abs().max().clamp(min=1e-6)
        noise = torch.zeros_like(value)
        noise[: self._real] = (drawn.to(value) - 0.5) * largest * SIZE
        return value + noise


class _NoiseByRow:
    """Noise for rows that a pool may have chosen: real ones come first, in the same order, in every
    layer.

    Args:
        path: of the module whose rows these are.
    """

    def __init__(self, path: str) -> None:
        self._path, self._calls = path, 0

    def before(self, _: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Adds noise to the first of a module's inputs."""
        return self._noisy(inputs[0]), *inputs[1:]

    def after(self, _: torch.nn.Module, inputs: Any, scores: Tensor) -> Tensor:
        """Adds noise to a module's output."""
        return self._noisy(scores)

    def _noisy(self, rows: Tensor) -> Tensor:
        self._calls += 1
        random = np.random.default_rng(zlib.crc32(f"{self._path} {self._calls}".encode()))
        noise = torch.from_numpy(random.random(len(rows)) - 0.5).to(rows) * SIZE
        return rows + noise.view(-1, *(1,) * (rows.dim() - 1))


@torch.no_grad()
def nudge(model: torch.nn.Module, share: float = 0.0) -> None:
    """Moves the parameters by a share of each, or by a few units in their last place."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.mul_(_units(parameter, generator, share))


class NarrowNoise(TorchDispatchMode):
    """While entered, moves what is computed in a narrower type by a few units in its last place.

    Moved parameters do not show how coarse that part is: eigenvalues that a model in float64 takes
    of an adjacency matrix in float32.

    Args:
        dtype: results that are no coarser than this stay.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._eps = torch.finfo(dtype).eps
        self._generator = torch.Generator().manual_seed(1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        aliases = func.is_view or func._schema.is_mutable
        if aliases or not any(map(_is_float, tree_leaves(args))):
            return result
        return tree_map_only(Tensor, self._moved, result)

    def _moved(self, result: Tensor) -> Tensor:
        if not _is_float(result) or torch.finfo(result.dtype).eps <= self._eps:
            return result
        return result * _units(result, self._generator)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _units(like: Tensor, generator: torch.Generator, share: float = 0.0) -> Tensor:
    """Factors near 1, a few units in the last place of a tensor's type away, or a share."""
    noise = torch.rand(like.shape, generator=generator) - 0.5
    return (1 + (share or 8 * torch.finfo(like.dtype).eps) * noise.double()).to(like)
