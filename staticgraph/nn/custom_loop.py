"""``with sg.bound(model, batch):`` runs a model on a batch of fixed shape in a custom loop.

The problem: a custom training step (two optimizers, a penalty, a framework's ``training_step``)
calls the model directly, and its layers, which receive only tensors, cannot know which rows are
padding. Inside the block they can, in this thread: converted layers and PyG's functions see the
batch; when the block ends, the previous state is restored. This covers forward and backward, in
eager mode and under the user's own ``torch.compile``.

The output has the batch's physical rows, padding last: compute the loss with
:func:`staticgraph.masked_mean`, or from ``out[batch.graph_mask]``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.dispatch import tree_leaves
from staticgraph.nn.context.bound_batch import Restored, remember, traced_here
from staticgraph.nn.convert import context_of


class bound:
    """Context manager inside which ``model`` runs on ``batch`` and ignores its padding.

    Args:
        model: any PyG model; its layers are made static in place, once, as
            :func:`staticgraph.convert` does. A model compiled with ``torch.compile(model,
            dynamic=False)`` compiles once per bucket.
        batch: a batch from a :class:`staticgraph.StaticLoader`.
        fixed: hide the real counts from the layers, as in a compiled step, so that nothing depends
            on them. Defaults to whether ``model`` is compiled; pass True where a function around
            the model is compiled.

    ``with ... as`` gives a copy of the batch on which the model may set attributes. The backward
    may run inside the block or after it; it must run inside if the model checkpoints activations
    and is called through something other than ``model`` itself.

    Raises:
        TypeError: the batch is not a :class:`staticgraph.StaticBatch`.
    """

    def __init__(
        self, model: torch.nn.Module, batch: StaticBatch, *, fixed: bool | None = None
    ) -> None:
        if not isinstance(batch, StaticBatch):
            raise TypeError(
                f"bound() takes a StaticBatch, as StaticLoader(store, plan) gives them, not a "
                f"{type(batch).__name__}; a batch of PyG needs no bound()"
            )
        compiled = getattr(model, "_orig_mod", None)
        fixed = _is_compiled(model) if fixed is None else fixed
        self._model = model if compiled is None else compiled
        self._context = context_of(self._model)
        batch = batch.without_pointers()
        self._batch = StaticBatch(batch.layout, batch.tensors()) if fixed else batch
        self._remembers = not fixed
        self._hook: Any = None
        self._restored = Restored()

    def __enter__(self) -> StaticBatch:
        self._restored.__enter__()
        self._context.enter(self._batch)
        if self._remembers:
            self._hook = self._model.register_forward_hook(_remember)
        return self._batch.replace()

    def __exit__(self, *exc: object) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._restored.__exit__(*exc)


def _remember(module: torch.nn.Module, arguments: Any, out: Any) -> None:
    """Lets a backward that recomputes parts of the forward find the batch."""
    if torch.is_grad_enabled() and not traced_here():
        remember([leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)])


def _is_compiled(model: torch.nn.Module) -> bool:
    parts = (model, *model.modules())
    return any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in parts)
