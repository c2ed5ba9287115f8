"""An epoch that is committed whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from staticgraph.outofcore.buffer import EmbeddingBuffer
    from staticgraph.outofcore.embeddings import EmbeddingFile
    from staticgraph.outofcore.link import LinkEpoch


class CommittedEpochs:
    """What trainers of embeddings on disk share: an epoch that fails or is interrupted leaves the
    buffer, the file and what is trained beside them where the epoch began."""

    buffer: EmbeddingBuffer
    file: EmbeddingFile

    def train_epoch(self, on_state: Callable[[int, int], None] | None = None) -> LinkEpoch:
        """One pass over all edges, committed at its end.

        Args:
            on_state: told the number of the state that begins and of how many.
        """
        try:
            return self._train_epoch(on_state)
        except BaseException:
            # Also an interrupt: the next epoch must begin where this one did.
            self.buffer.abandon()
            self.file.rollback()
            self._restore()
            raise

    def _train_epoch(self, on_state: Callable[[int, int], None] | None) -> LinkEpoch:
        """The pass and its commit."""
        raise NotImplementedError

    def _restore(self) -> None:
        """Puts back what is kept beside the embeddings, as of the last commit."""
        raise NotImplementedError
