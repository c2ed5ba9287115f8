"""What a replay returns to its caller: small results copied, large ones lent until the next replay.

The problem: a recording writes its results to the same addresses every time, and the recordings of
one pool overwrite each other's, so a result kept past the next replay of any of them would hold
other numbers. Copying everything is safe, but for outputs per node or per edge it takes their
memory a second time. So small results (losses, metrics, one row per graph) are copied, and large
ones are lent: a lent tensor knows which replay wrote it, and using it after the next replay, of
whichever recording, raises an error instead of giving wrong numbers.

Invariant: views of a lent tensor are lent, too; whatever is computed from it is an ordinary tensor.
Its shape, dtype and device may be read at any time. Access to the memory that bypasses torch
(``numpy()`` of a CPU tensor, DLPack, ``data_ptr``) is checked when it is requested, and not later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from staticgraph.batches.batch.containers import mapped, opaque
from staticgraph.errors import NotStatic, StaleOutput
from staticgraph.internals.dispatch import DisableTorchFunctionSubclass, tree_map_only
from staticgraph.recording.graph_recorder import Replays
from staticgraph.text.how_many import how_many

# Below this size a copy is one kernel of about a microsecond at an H200's 4.3 TB/s (modelled, not
# measured), which is less than the host time of lending.
CLONED_BYTES = 1 << 20


# Properties of a tensor that do not read it; errors and debuggers use them.
_PROPERTIES = ("shape", "dtype", "device", "layout", "requires_grad", "is_cuda", "ndim")
_HARMLESS = frozenset(
    {
        *(getattr(Tensor, name).__get__ for name in _PROPERTIES),
        Tensor.dim,
        Tensor.size,
        Tensor.numel,
        Tensor.__len__,
        Tensor.is_floating_point,
    }
)


class LentTensor(Tensor):
    """A result at the address that its recording writes; see the module."""

    _replays: Replays
    _replay: int

    @classmethod
    def of(cls, value: Tensor, replays: Replays, replay: int) -> LentTensor:
        """Lends a result of one replay."""
        lent = value.as_subclass(cls)
        lent._replays, lent._replay = replays, replay
        return lent

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        lent: dict[int, LentTensor] = {}  # by memory address

        def plain(value: LentTensor) -> Tensor:
            """Returns the plain tensor, after checking that its memory is still valid."""
            with DisableTorchFunctionSubclass():
                bare = value.as_subclass(Tensor)
                lent[_memory(bare)] = value
                if func not in _HARMLESS:
                    value._check(func)
            return bare

        def lend(value: Tensor) -> Tensor:
            """Lends views of lent memory, too; returns any other result as it is."""
            owner = lent.get(_memory(value))
            return value if owner is None else cls.of(value, owner._replays, owner._replay)

        args, kwargs = tree_map_only(LentTensor, plain, (args, kwargs or {}))
        return tree_map_only(Tensor, lend, func(*args, **kwargs))

    def _check(self, func: Callable[..., Any]) -> None:
        late = self._replays.count - self._replay
        if late:
            raise StaleOutput(
                f"{getattr(func, '__name__', func)}() of an output of shape {list(self.shape)} "
                f"that was lent for one step: recordings ran {how_many(late, 'more time')} since, "
                "and share its memory; keep it with out.clone() before the "
                "runner's next call, of any bucket"
            )

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if self._replay != self._replays.count:
            return f"LentTensor(stale, shape={list(self.shape)}, dtype={self.dtype})"
        return super().__repr__()


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def check_can_be_handed_out(result: Any, what: str) -> None:
    """Refuses a result that may hold tensors which cannot be found, copied and lent.

    Args:
        result: of the work that is to be recorded.
        what: the name of the work, for the message.

    Raises:
        NotStatic: the result holds such a container; the message names its class.
    """
    if (container := opaque(result)) is not None:
        raise NotStatic(
            f"{what}: the model returns a {container}, and tensors in it would change at the next "
            "replay: return tensors, in tuples, lists, dicts or dataclasses, or give "
            "StaticGraphRunner(model, plan, forward=lambda model, batch: ...)"
        )


def is_small(value: Tensor) -> bool:
    """Whether a result is copied, not lent."""
    return value.numel() * value.element_size() <= CLONED_BYTES


def handed_out(result: Any, replays: Replays) -> Any:
    """Returns a result for the caller: every tensor copied or lent, in the same structure.

    Args:
        result: tensors, in any containers that :mod:`staticgraph.batches.batch.containers` takes
            apart.
        replays: those of all recordings that share memory with the one that just wrote the result.
    """

    def handed_over(value: Tensor) -> Tensor:
        """Copies a small tensor; lends the recording's own memory for a large one."""
        if is_small(value):
            return value.clone()
        return LentTensor.of(value, replays, replays.count)

    if type(result) is Tensor:  # such as a step's loss: no structure to walk
        return handed_over(result)
    return mapped(handed_over, result)
