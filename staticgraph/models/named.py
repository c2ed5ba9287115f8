"""Resolves ``module:name`` on a command line: a model's builder, or a loss.

Modules in the current folder are found, as with ``python -m``. Every error is a one-line message
that says which option the name was given to.
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
from staticgraph.text.how_many import or_nearest

WITHOUT_DATA = "it is built from the data, and only a plan was given"


def is_spec(name: str) -> bool:
    """Whether a name is ``module:name`` rather than a built-in model."""
    return ":" in name


def named(spec: str, option: str) -> Any:
    """Returns the object that ``module:name`` names.

    Args:
        spec: the name.
        option: the option it was given to, such as ``--model``, for messages.

    Raises:
        ValueError: nothing has that name.
    """
    module, name = require_module(spec, option)
    try:
        value = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise no_module(spec, option) from None
    if not hasattr(value, name):
        meant = or_nearest(name, (each for each in vars(value) if not each.startswith("_")))
        raise ValueError(f"{option} {spec}: {module} has nothing called {name!r}{meant}")
    return getattr(value, name)


def function_named(spec: str, option: str) -> Any:
    """Returns a function by name.

    Raises:
        ValueError: nothing callable has that name.
    """
    function = named(spec, option)
    if not callable(function):
        raise ValueError(
            f"{option} {spec}: it is of type {type(function).__name__}; name a function"
        )
    return function


def make_model(name: str, store: GraphStore | None, option: str = "--model") -> Module:
    """Returns the model of a name: a built-in one in its default sizes, or :func:`built`.

    Raises:
        ValueError: it names no model, or the model is built from data and ``store`` is None.
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
    """The builder that ``module:build`` names, inspected but not called yet.

    Attributes:
        spec: the name.
        option: the option it was given to, for messages.
        build: returns the model.
        takes_data: whether it is called with the store.
    """

    spec: str
    option: str
    build: Callable[..., Any]
    takes_data: bool

    def __call__(self, store: GraphColumns | None) -> Module:
        """Builds the model.

        Raises:
            ValueError: it takes the data but ``store`` is None, or it does not return a
                ``torch.nn.Module``.
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
    """Returns the builder that ``module:build`` names.

    Raises:
        ValueError: it is not callable with the data alone or without arguments.
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
    """Returns the model that ``module:build`` builds: ``build()``, or ``build(store)`` if it takes
    an argument.

    Raises:
        ValueError: the name does not build a ``torch.nn.Module`` from the data alone.
    """
    return builder_of(spec, option)(store)


def built_without_data(spec: str, option: str = "--model") -> Module | None:
    """Builds the model of ``module:build`` if it takes no data, so that errors are reported before
    any data is read; None if it takes the data, or for a built-in model.

    Raises:
        ValueError: the name does not build a ``torch.nn.Module``.
    """
    builder = builder_of(spec, option) if is_spec(spec) else None
    return None if builder is None or builder.takes_data else builder(None)


def require_trainable(model: Module, name: str) -> None:
    """Refuses to train a model without trainable parameters.

    Raises:
        ValueError: no parameter has ``requires_grad``.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"--model {name}: no parameter has requires_grad: nothing to train")


def _arguments_needed(build: Any) -> list[str]:
    """Names of the parameters without a default."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):  # a class implemented in C without a signature
        return []
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p.name for p in parameters if p.default is p.empty and p.kind not in several]
