"""What is named on a command line as ``module:name``: a model's builder, a loss.

A module of the present folder is found, as ``python -m`` finds it. What is wrong with a name is one
line that says which option it was given to.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

from staticgraph.files.named_module import no_module, require_module
from staticgraph.models.zoo import NAMES, build
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.nearest import or_nearest

WITHOUT_DATA = "it is built from the data, and only a plan was given"


def is_spec(name: str) -> bool:
    """Whether a name is ``module:name``, and no model of the zoo."""
    return ":" in name


def named(spec: str, option: str) -> Any:
    """What ``module:name`` names.

    Args:
        spec: the name.
        option: what it was given to, such as ``--model``, for messages.

    Raises:
        ValueError: it names nothing.
    """
    module, name = require_module(spec, option)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise no_module(spec, option) from None
    if not hasattr(found, name):
        meant = or_nearest(name, (each for each in vars(found) if not each.startswith("_")))
        raise ValueError(f"{option} {spec}: {module} has nothing called {name!r}{meant}")
    return getattr(found, name)


def function_named(spec: str, option: str) -> Any:
    """A function by name.

    Raises:
        ValueError: it names nothing that can be called.
    """
    found = named(spec, option)
    if not callable(found):
        raise ValueError(f"{option} {spec}: it is of type {type(found).__name__}; name a function")
    return found


def made(name: str, store: GraphStore | None, option: str = "--model") -> Module:
    """The model of a name: one of the zoo in its own sizes, or :func:`built`.

    Raises:
        ValueError: it names no model, or one that is built from data, of which there is none.
    """
    if is_spec(name):
        return built(name, store, option)
    if name not in NAMES:
        raise ValueError(
            f"{option} {name}: expected MODULE:NAME, such as mymodule:build, or one of "
            f"{', '.join(NAMES)}"
        )
    if store is None:
        raise ValueError(f"{option} {name}: {WITHOUT_DATA}")
    return build(name, store)


@dataclass(frozen=True, slots=True)
class Builder:
    """What ``module:build`` names: looked at, and not called yet.

    Attributes:
        spec: the name; option: what it was given to, for messages.
        build: gives the model.
        takes_data: whether it is called with the store.
    """

    spec: str
    option: str
    build: Callable[..., Any]
    takes_data: bool

    def __call__(self, store: GraphColumns | None) -> Module:
        """The model.

        Raises:
            ValueError: it takes the data and there is none, or it gives no ``torch.nn.Module``.
        """
        if self.takes_data and store is None:
            raise ValueError(f"{self.option} {self.spec}: {WITHOUT_DATA}")
        model = self.build(store) if self.takes_data else self.build()
        if not isinstance(model, Module):
            name = self.spec.partition(":")[2]
            raise ValueError(
                f"{self.option} {self.spec}: {name} gives a {type(model).__name__}; it should give "
                "a torch.nn.Module"
            )
        return model


def builder_of(spec: str, option: str = "--model") -> Builder:
    """What ``module:build`` names.

    Raises:
        ValueError: it names nothing that can be called with the data alone, or with nothing.
    """
    build: Any = named(spec, option)
    name = spec.partition(":")[2]
    if isinstance(build, Module):
        raise ValueError(
            f"{option} {spec}: {name} is a model already, of other weights than the seed's; name "
            f"its class {type(build).__name__}, or a function that builds it"
        )
    if not callable(build):
        raise ValueError(
            f"{option} {spec}: {name} is of type {type(build).__name__}; name what builds it"
        )
    needed = _arguments_needed(build)
    if len(needed) > 1:
        raise ValueError(
            f"{option} {spec}: {name} needs {', '.join(needed)}; name a function that takes the "
            "data alone, or nothing"
        )
    return Builder(spec, option, build, bool(needed))


def built(spec: str, store: GraphColumns | None, option: str = "--model") -> Module:
    """The model that ``module:build`` gives: ``build()``, or ``build(store)`` where it takes an
    argument.

    Raises:
        ValueError: it names nothing that builds a ``torch.nn.Module`` from the data alone.
    """
    return builder_of(spec, option)(store)


def built_without_data(spec: str, option: str = "--model") -> Module | None:
    """What ``module:build`` gives where it takes no data, so that what is wrong with it is said
    before any data is read; None where it takes the data, or for a model of the zoo.

    Raises:
        ValueError: it names nothing that builds a ``torch.nn.Module``.
    """
    builder = builder_of(spec, option) if is_spec(spec) else None
    return None if builder is None or builder.takes_data else builder(None)


def require_trainable(model: Module, name: str) -> None:
    """Refuses to train a model in which nothing can be.

    Raises:
        ValueError: no parameter has ``requires_grad``.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"--model {name}: no parameter has requires_grad: nothing to train")


def _arguments_needed(build: Any) -> list[str]:
    """Names of what has no default."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):  # of a class in C, which does not tell
        return []
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p.name for p in parameters if p.default is p.empty and p.kind not in several]
