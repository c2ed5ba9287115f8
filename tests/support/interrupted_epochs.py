"""An epoch over a graph on disk that is interrupted, and the one that was not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def assert_begins_anew(
    whole: Any, trainer: Any, state: int, everything: Callable[[Any], list[np.ndarray]]
) -> None:
    """Two epochs of ``trainer``, each interrupted once at a state of the buffer, end where those of
    ``whole`` do; ``everything`` gives what a trainer has learned. Closes both."""

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
