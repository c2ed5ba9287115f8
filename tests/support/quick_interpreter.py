"""Makes Triton's interpreter take two thirds of its time, with the same results.

At every launch, and again at every call of one device function by another, the interpreter searches
all of ``triton.language`` for what it must patch; a call only finds what its launch has patched,
and that took a quarter of the time. Here a launch patches everything that a kernel or one of
Triton's own functions can see, and a call patches nothing. The operators of the language are called
through one function fewer, and the table of NumPy's types is built once. A Triton version with a
different structure is not changed.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

BY_THE_SCOPE = ("_LangPatchScope", "_patch_builtin", "_patch_lang_tensor", "_patch_lang_core")


def begin() -> bool:
    """Installs this in the current process; returns whether that was possible."""
    names = (*BY_THE_SCOPE, "_patch_attr", "_patch_lang", "_get_np_dtype", "interpreter_semantic")
    if not all(hasattr(interpreter, name) for name in names):
        return False
    parts = inspect.signature(interpreter._patch_attr).parameters
    if tuple(parts) != ("obj", "name", "member", "builder", "scope"):
        return False
    interpreter._patch_attr = _patch_attr
    interpreter._patch_lang = _patch_lang
    interpreter._get_np_dtype = _np_dtype
    interpreter.InterpretedFunction.__call__ = _call
    return True


def _patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    inner, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def interpreted(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return inner(*args, **kwargs)

    scope.set_attr(obj, name, interpreted)


def _patch_lang(fn: Any) -> Any:
    scope = interpreter._LangPatchScope()
    builder = interpreter.interpreter_builder
    for lang in (tl, tl.core):
        interpreter._patch_builtin(lang, builder, scope)
        interpreter._patch_builtin(lang.tensor, builder, scope)
        if lang is tl:
            interpreter._patch_builtin(lang.math, builder, scope)
        interpreter._patch_lang_tensor(lang.tensor, scope)
        interpreter._patch_lang_core(lang, scope)
    interpreter._patch_builtin(tl.core.tensor_descriptor_base, builder, scope)
    return scope


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls one device function from another, inside a launch."""
    try:
        return self.rewrite()(*args, **kwargs)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


NARROW = {
    "int1": bool,
    "bf16": np.uint16,
    **{kind.name: np.uint8 for kind in (tl.float8e5, tl.float8e5b16, tl.float8e4nv)},
    **{kind.name: np.uint8 for kind in (tl.float8e4b8, tl.float8e4b15)},
    **{kind.name: kind_np for kind, kind_np in (
        (tl.float16, np.float16), (tl.float32, np.float32), (tl.float64, np.float64),
        (tl.int8, np.int8), (tl.uint8, np.uint8), (tl.int16, np.int16), (tl.uint16, np.uint16),
        (tl.int32, np.int32), (tl.uint32, np.uint32), (tl.int64, np.int64), (tl.uint64, np.uint64),
    )},
}  # fmt: skip
TYPES = {name: np.dtype(kind) for name, kind in NARROW.items()}
ADDRESS = np.dtype(np.uint64)


def _np_dtype(kind: Any) -> np.dtype[Any]:
    if isinstance(kind, tl.block_type):
        kind = kind.element_ty
    return ADDRESS if isinstance(kind, tl.pointer_type) else TYPES[kind.name]
