"""Tensors with a shape, a dtype and a device, but without memory."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)

from staticgraph.internals.shapes import NEW, RULES, NewTensor, told

__all__ = ["FakeTensor", "FakeTensorMode", "QuickFakeMode", "ask_device"]

# The operator as which reading a fake tensor's device is dispatched.
ask_device: torch._ops.OpOverload[..., Any] = torch.ops.prim.device.default

SEQUENCES = frozenset((list, tuple, torch.Size))
PLAIN = frozenset(
    (int, float, bool, str, NoneType, torch.dtype, torch.device, torch.layout, torch.memory_format)
)
# Operations over dense tensors whose own kernel computes the result shape, in C++. torch takes a
# slower path to support symbolic shapes.
OWN_SHAPES = """
    _log_softmax, _log_softmax_backward_data, _softmax, _softmax_backward_data, _unsafe_view,
    abs, add, add_, addcdiv_, addcmul_, addmm, alias, baddbmm, bitwise_and, bitwise_not,
    bitwise_or, bmm, cat, clamp, clamp_min, clone, detach, div, div_, eq, exp, expand, gather,
    ge, gt, index_add, index_select, le, log, logical_and, logical_not, lt, maximum, minimum,
    mm, mul, mul_, ne, neg, permute, pow, reciprocal, relu, rsqrt, scatter_add, scatter_add_,
    select, select_backward, sigmoid, sigmoid_backward, slice, slice_backward, split,
    split_with_sizes, sqrt, squeeze, stack, sub, sum, t, tanh, tanh_backward,
    threshold_backward, transpose, unbind, unsqueeze, view, where
"""


def _overloads(names: str) -> frozenset[Any]:
    packets = [getattr(torch.ops.aten, name.strip()) for name in names.split(",")]
    found = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    # TorchScript-only names have no kernel; composite operations may read data.
    return frozenset(
        one
        for one in found
        if torch._C._dispatch_has_kernel(one.name())
        and not one.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        and not any(argument.is_out for argument in one._schema.arguments)
    )


class QuickFakeMode(FakeTensorMode):
    """A fake tensor mode whose operations take a third of the time, with the same results.

    Results of row-wise operations are derived from their arguments (:mod:`.shapes`). For other
    common operations (:data:`OWN_SHAPES`) the meta kernel is called directly. For the rest, torch
    caches results by arguments, and spends most of the time on building the cache key; here dense
    tensors are identified by their distinguishing properties only, and numbers by their values.
    torch handles everything else.
    """

    _quick = _overloads(OWN_SHAPES)
    _told = NEW | RULES.keys()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # of a fake tensor, by device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no operation here is traced; the check takes a tenth of each operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = MappingProxyType({})
    ) -> Any:
        """Returns the result of an operation."""
        return self.dispatch(func, types, args, kwargs or MappingProxyType({}))

    def dispatch(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = MappingProxyType({})
    ) -> Any:
        """Returns the result of an operation."""
        quick = (func in self._quick and not kwargs) or func in self._told
        device = self._device(args) if quick else None
        if device is None:
            return super().dispatch(func, types, args, kwargs)
        known = told(func, args, kwargs)
        if isinstance(known, NewTensor):
            return self._faked(torch.empty(known.shape, dtype=known.dtype, device="meta"), device)
        if known is not None:
            return known
        if kwargs or func not in self._quick:
            return super().dispatch(func, types, args, kwargs)
        with in_kernel_invocation_manager(self):
            out = func(*args)
        if isinstance(out, Tensor):
            return self._faked(out, device)
        return type(out)(self._faked(one, device) for one in out)

    def _faked(self, made: Tensor, device: torch.device) -> Tensor:
        """Returns ``FakeTensor(self, made, device)``, with attributes copied at once from an
        earlier one.

        The constructor sets twenty attributes one by one; those of the first fake tensor made here
        on each device are reused.
        """
        if isinstance(made, FakeTensor):
            return made
        known = self._attributes.get(device)
        if known is None:
            first = FakeTensor(self, made, device)
            self._attributes[device] = dict(vars(first))
            return first
        fake = Tensor._make_subclass(
            FakeTensor,
            made,
            made.requires_grad,
            dispatch_device=True,
            device_for_backend_keys=device,
        )
        if self._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
        else:
            torch._C._set_throw_on_mutable_data_ptr(fake)
        vars(fake).update(known)
        return fake

    def _device(self, values: Iterable[Any]) -> torch.device | None:
        """Returns the device of all tensors among the values, or None unless all are dense and of
        this mode."""
        found = None
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if not self._dense(value) or (found is not None and value.fake_device != found):
                    return None
                found = value.fake_device
            elif kind is list or kind is tuple:
                if value and isinstance(value[0], Tensor):
                    within = self._device(value)
                    if within is None or (found is not None and within != found):
                        return None
                    found = within
            elif kind not in PLAIN:
                return None
        return found

    def _dense(self, tensor: FakeTensor) -> bool:
        return not (
            tensor.fake_mode is not self
            or tensor.constant is not None
            or tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_complex()
            or tensor.is_neg()
        )

    def _cache_key(self, state: Any, func: Any, args: Any, kwargs: Any) -> Any:
        key = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if (
            self._named(key, args)
            and self._named(key, kwargs)
            and self._named(key, kwargs.values())
        ):
            return tuple(key)
        return super()._cache_key(state, func, args, kwargs)

    def _named(self, key: list[Any], values: Iterable[Any]) -> bool:
        """Appends the cache key of the values; returns False if one of them has none."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if not self._dense(value):
                    return False
                key += (
                    value.dtype,
                    value.shape,
                    value.stride(),
                    value.storage_offset(),
                    value.untyped_storage().nbytes(),
                    value.requires_grad,
                    value.fake_device,
                )
            elif kind in PLAIN:
                key += (kind, value)
            elif kind in SEQUENCES:
                key += (kind, len(value))
                if not self._named(key, value):
                    return False
            else:
                return False
        return True
