"""Leaves out work of torch's compiler that is for log lines nobody reads, or is repeated.

A third of the tests' time is tracing. For each traced operation Dynamo looks up the function of a
line, for which it tokenizes the whole file, in every process again; it normalizes the same paths
thousands of times; it reads its settings once per instruction through a Python function. And
without a GPU ``torch.manual_seed`` formats the call stack three times, in case a device is
initialized later. What is traced, and with what result, does not change.

All of it is internal to torch: what a version does not have in this form is left as it is.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch.utils import _config_module as settings


def begin(seeds: bool = True) -> None:
    """Installs this in the current process and its forks; asks for no device.

    Args:
        seeds: whether ``torch.manual_seed`` may leave out devices, in a torch built without CUDA.
    """
    translation = importlib.import_module("torch._dynamo.symbolic_convert")
    rules = importlib.import_module("torch._dynamo.trace_rules")
    if hasattr(translation, "get_funcname"):
        translation.get_funcname = lambda filename, lineno: None
    if hasattr(rules, "_as_posix_path"):
        rules._as_posix_path = functools.cache(rules._as_posix_path)
    if hasattr(settings, "_UNSET_SENTINEL") and hasattr(settings, "_IMMUTABLE_CONFIG_TYPES"):
        settings.ConfigModule.__getattr__ = _quick_setting(settings.ConfigModule.__getattr__)
    if seeds and not torch.backends.cuda.is_built():
        torch.manual_seed = _seed_the_cpu
        torch.random.manual_seed = _seed_the_cpu


def _seed_the_cpu(seed: int) -> torch.Generator:
    return torch.default_generator.manual_seed(int(seed))


def _quick_setting(slow: Any) -> Any:
    """Returns ``ConfigModule.__getattr__`` with a short way for settings of the plain kind."""
    unset, immutable = settings._UNSET_SENTINEL, settings._IMMUTABLE_CONFIG_TYPES

    def setting(self: Any, name: str) -> Any:
        entry = self.__dict__["_config"].get(name)
        if entry is None or entry.alias is not None or entry.hide or entry.justknob is not None:
            return slow(self, name)
        if getattr(entry, "deprecated", False) or entry.env_value_force is not unset:
            return slow(self, name)
        value = entry.user_override.get()
        if value is not unset:
            return value
        if entry.env_value_default is unset and isinstance(entry.default, immutable):
            return entry.default
        return slow(self, name)

    return setting
