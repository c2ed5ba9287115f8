"""Compares interrupted epochs over a graph on disk with uninterrupted ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def assert_begins_anew(
    whole: Any, trainer: Any, state: int, everything: Callable[[Any], list[np.ndarray]]
) -> None:
    """Asserts that two epochs, each interrupted once at a buffer state, equal those of ``whole``.

    ``everything`` returns the learned state of a trainer. Closes both trainers.
    """

    def interrupt(number, of):
        if number == state:
            raise KeyboardInterrupt

    for _ in range(2):
        whole.train_epoch()
        with pytest.raises(KeyboardInterrupt):
            trainer.train_epoch(interrupt)
        trainer.train_epoch()
    for now, then in zip(everything(trainer), everything(whole), strict=True):
        np.testing.assert_array_equal(now, then)
    trainer.close()
    whole.close()
