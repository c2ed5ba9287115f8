"""Makes functions of PyG choose, at every call, between their stock code and a static form.

The problem: PyG's functions are bound under hundreds of names, in PyG, in users' modules, in
closures and containers, and a step needs other functions in their place, but only in its own
thread and while it runs. The idea: no name is rebound. The function object stays the same, with its
name, signature, defaults and place in pickles; only its code object is replaced, once, by a few
lines that look at the current binding of the thread: without one they call the stock code, with one
the static form. Every existing and future reference to the function therefore dispatches.

Invariants: the stock code is kept as a separate function (:func:`stock`), which never dispatches,
and ``inspect`` finds PyG's own source, so that ``torch.jit.script`` compiles what it did before.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

from staticgraph.nn.context.bound_batch import present
from staticgraph.nn.context.unbound_warning import look

Function = TypeVar("Function", bound=Callable[..., Any])

_STOCK: dict[int, tuple[FunctionType, FunctionType]] = {}  # by id: the function, its stock copy
_LOCK = threading.Lock()
BINDING = "_staticgraph_binding"  # the binding is looked up once: tracing follows every call


def stock(function: Function) -> Function:
    """Returns a copy of a PyG function that never dispatches, for static forms that call it.

    Raises:
        TypeError: it is not a plain Python function.
    """
    if not isinstance(function, FunctionType):
        raise TypeError(f"{function!r} is not a Python function, so its code cannot dispatch")
    known = _STOCK.get(id(function))
    if known is None:
        copy = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__annotations__ = function.__annotations__
        copy.__doc__ = function.__doc__
        copy.__qualname__ = function.__qualname__
        copy.__module__ = function.__module__
        copy.__dict__.update(function.__dict__)
        known = _STOCK.setdefault(id(function), (function, copy))
    return cast(Function, known[1])


def dispatch(function: Callable[..., Any], static: Callable[..., Any]) -> None:
    """Makes ``function(...)`` call ``static(context, ...)`` where a batch is bound, and its stock
    code elsewhere. A second call for the same function changes nothing."""
    copy = stock(function)
    assert isinstance(function, FunctionType)
    with _LOCK:
        if function.__code__ is not copy.__code__:
            return
        number = f"{list(_STOCK).index(id(function))}_{function.__name__.strip('_')}"
        names = [f"_staticgraph_{what}_{number}" for what in ("present", "look", "stock", "static")]
        function.__globals__.update(zip(names, (present, look, copy, static), strict=True))
        function.__code__ = _dispatching(copy.__code__, *names)


def _dispatching(code: CodeType, present: str, look: str, stock: str, static: str) -> CodeType:
    """Builds code with the parameters of ``code`` that dispatches and passes them on."""
    arg_count, only = code.co_argcount, code.co_kwonlyargcount
    names = list(code.co_varnames)
    positional, keywords, rest = (
        names[:arg_count],
        names[arg_count : arg_count + only],
        names[arg_count + only :],
    )
    taken, passed = list(positional), list(positional)
    if code.co_posonlyargcount:
        taken.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        star = f"*{rest.pop(0)}"
        taken.append(star)
        passed.append(star)
    elif keywords:
        taken.append("*")
    taken += keywords
    passed += [f"{name}={name}" for name in keywords]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        stars = f"**{rest.pop(0)}"
        taken.append(stars)
        passed.append(stars)
    seen = ", ".join([repr(code.co_name), *names[: arg_count + only]])
    free = ", ".join(code.co_freevars)  # the function keeps its cells, so its code must have them
    text = f"""
def outer({free}):
    def inner({", ".join(taken)}):
        {BINDING} = {present}()
        if {BINDING} is None:
            {look}({seen})
            return {stock}({", ".join(passed)})
        return {static}({", ".join([f"{BINDING}.context", *passed])})
        {free}
"""
    outer = compile(text, "<staticgraph>", "exec", dont_inherit=True)
    for name in ("outer", "inner"):
        outer = next(c for c in outer.co_consts if isinstance(c, CodeType) and c.co_name == name)
    assert outer.co_freevars == code.co_freevars
    return outer.replace(
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )
