"""Calls around a region of a captured graph that switch gradients off or autocast on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast

__all__ = ["enter_autocast", "exit_autocast", "set_grad_enabled"]

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
