"""Losses that are not finite, and norms over a single row, found without waiting for the device.

The problem: one NaN in a feature or a target, or too high a learning rate, makes every parameter
NaN with one update, and training goes on to its end. Reading each loss would stall a device that
runs asynchronously to the host. The idea: each bucket has a flag on the device, set by the first
loss that is not finite, together with the ids of that batch's graphs, inside a recording as well;
the flags are read every :data:`EVERY` steps by default and at the end of an epoch. On the CPU,
where reading costs nothing, the loss is read before the update, which then does not happen.

Torch refuses statistics over a single value, and so do steps that know their counts. Of rows that a
pool chose only the device knows how many they are: running statistics are left unchanged, which is
right, but unreported. So there is a flag in each norm over chosen rows, set when this happens and
read with the losses; the user is told once, by name. It costs a comparison of the count.

Invariant: no host read in a recorded step, and none between checks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import wide_mask
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import NonFiniteLoss, users_level
from staticgraph.nn.norm.batch_norm import SINGLE
from staticgraph.sizes.capacity import Capacity

# Reading the flags waits for the device; once in this many steps the cost is negligible.
EVERY = 100
# How many ids a message lists.
NAMED = 12


class FiniteLosses:
    """Watches the losses of one runner's training steps.

    Args:
        capacities: one per bucket.
        device: the device of the losses.
        every: after how many steps to read the flags; 0 watches nothing.
        model: its norms over single rows are reported, and its layers whose overflow makes a loss
            NaN are named as the likely cause.
    """

    def __init__(
        self,
        capacities: Sequence[Capacity],
        device: torch.device,
        every: int,
        model: torch.nn.Module,
    ) -> None:
        self._capacities = capacities
        self._device, self._model = device, model
        self._every = every
        self._steps = 0
        self._reads = True
        # Per bucket: NaN once a loss was not finite, else 0; and the ids of the first such batch,
        # else of the latest one. Each launch here is paid in every step.
        self._flags: dict[int, tuple[Tensor, Tensor]] = {}
        self._reported: set[str] = set()

    def grow(self, capacities: Sequence[Capacity]) -> None:
        """Takes other capacities, of which only the last is new."""
        self._capacities = capacities
        self._flags.pop(len(capacities) - 1, None)

    @property
    def watches(self) -> bool:
        """Whether losses are watched."""
        return self._every > 0

    # ------------------------------------------------------------------ in a step

    def before_update(
        self, loss: Tensor, batch: StaticBatch, elsewhere: Sequence[int] | None = None
    ) -> None:
        """Notes a loss that is on a device; reads one that is on the CPU.

        Args:
            loss: of the batch, or the mean over the batches of all ranks.
            batch: this rank's batch.
            elsewhere: the ranks whose losses are not finite, if this rank's loss is.

        Raises:
            NonFiniteLoss: the loss was read, and is not finite.
        """
        if not self._every:
            return
        if self._device.type != "cpu":
            self.note(loss, batch)
        elif self._reads and not math.isfinite(value := loss.item()):
            if elsewhere is not None:
                raise NonFiniteLoss(
                    f"the loss of this step is {value}, and this rank's part of it is finite: "
                    f"the message of rank {', '.join(map(str, elsewhere))} names the graphs; the "
                    "update was left out on all ranks"
                )
            what = f"is {value}; its update was left out"
            if broken := self._broken():
                what += (
                    f". But parameter {broken} is not finite before it: an earlier step's loss was "
                    "finite and its gradient was not, as that of a root or a norm of 0 is, which "
                    "torch.autograd.set_detect_anomaly(True) finds"
                )
            raise self._error(_graphs(batch.graph_ids), what)

    def before_backward(self, gradient: Tensor, batch: StaticBatch) -> None:
        """Notes or reads, as :meth:`before_update`, what a user's loss sends back to an output.

        An infinity in float16 is left to the user's GradScaler.

        Args:
            gradient: by a tensor of the model's output.
            batch: the one it was computed for.

        Raises:
            NonFiniteLoss: it was read, and is not finite in a real row.
        """
        gradient = gradient.detach()
        bad = gradient.isnan() if gradient.dtype == torch.float16 else ~gradient.isfinite()
        if self._device.type == "cpu" and not bad.any():
            return
        with suppress(ValueError):  # rows of nothing: every one counts
            bad = bad & wide_mask(batch.mask_of(gradient), gradient)
        if self._device.type != "cpu":
            self.note(torch.where(bad.any(), torch.nan, 0.0), batch)
            self.count()
        elif bad.any():
            raise self._error(
                _graphs(batch.graph_ids),
                "has a gradient by the model's output that is not finite; the backward was stopped "
                "before it reached the parameters. Where labels are missing (NaN), let the mean "
                "take the loss: sg.masked_mean(lambda batch: F.mse_loss(out, batch.y, "
                "reduction='none'), batch)",
            )

    @contextmanager
    def unread(self) -> Iterator[None]:
        """A ``with`` block in which losses are not read: for timed steps that are undone."""
        self._reads = False
        try:
            yield
        finally:
            self._reads = True

    def note(self, loss: Tensor, batch: StaticBatch) -> None:
        """Sets the bucket's flag if this loss is not finite; reads nothing.

        Keeps the batch's ids unless an earlier loss of the bucket was not finite.
        """
        if not self._every:
            return
        flag, ids = self.prepare(batch.bucket)
        with torch.no_grad():
            torch.where(torch.isnan(flag), ids, batch.graph_ids, out=ids)
            flag.add_(loss, alpha=0)  # loss * 0 is NaN for infinity and NaN, else 0

    def prepare(self, bucket: int) -> tuple[Tensor, Tensor]:
        """Returns a bucket's flag and ids, at fixed addresses."""
        if bucket not in self._flags:
            graphs = self._capacities[bucket].graphs
            self._flags[bucket] = (
                torch.zeros((), device=self._device),
                torch.full((graphs,), -1, dtype=torch.int64, device=self._device),
            )
        return self._flags[bucket]

    # ------------------------------------------------------------------ between steps

    def count(self) -> bool:
        """Counts one finished step; checks if it is time, and returns whether it was.

        Raises:
            NonFiniteLoss: see :meth:`check`.
        """
        self._steps += 1
        if not self._every or self._steps % self._every:
            return False
        self.check()
        return True

    def check(self) -> None:
        """Waits for the device and reads the flags; clears those of losses.

        Warns once of each norm that met a single real row.

        Raises:
            NonFiniteLoss: a loss since the last check was not finite.
        """
        self._warn_of_single_rows()
        if not self._flags:
            return
        buckets = list(self._flags)
        flags = torch.stack([self._flags[bucket][0] for bucket in buckets]).tolist()
        for bucket, flag in zip(buckets, flags, strict=True):
            if math.isnan(flag):
                graphs = _graphs(self._flags[bucket][1])
                for other, _ in self._flags.values():
                    other.zero_()
                raise self._error(
                    graphs, "was not finite, which a check after it found: later updates are lost"
                )

    def clear(self) -> None:
        """Clears all flags, in place."""
        flags = (flag for flag, _ in self._flags.values())
        for flag in (*flags, *self._norm_flags().values()):
            flag.zero_()

    def _norm_flags(self) -> dict[str, Tensor]:
        """The flags of norms over chosen rows, by the norm's path."""
        return {
            path or "the model": flag
            for path, module in self._model.named_modules()
            if (flag := vars(module).get(SINGLE)) is not None
        }

    def _broken(self) -> str | None:
        """The path of a parameter that is not finite."""
        parameters = self._model.named_parameters()
        return next((path for path, value in parameters if not value.isfinite().all()), None)

    def _warn_of_single_rows(self) -> None:
        flags = self._norm_flags()
        if not flags:
            return
        read = zip(flags, torch.stack([*flags.values()]).tolist(), strict=True)
        norms = {norm for norm, flag in read if flag}
        if new := sorted(norms - self._reported):
            self._reported |= norms
            warnings.warn(
                f"{', '.join(new)}: had one real row to take statistics over, in a batch whose "
                "counts only the device knows, where torch would have refused it; the running "
                "statistics were left alone. Leave graphs out that come down to one row, choose a "
                "larger batch, or set the layer to eval()",
                stacklevel=users_level(),
            )

    def _error(self, graphs: list[int], what: str) -> NonFiniteLoss:
        named = ", ".join(map(str, graphs[:NAMED]))
        more = f" and {len(graphs) - NAMED} more" if len(graphs) > NAMED else ""
        likely = "".join(
            f"A likely cause: more edges than {path} has rows for, which {path}.grow() adds to "
            "(then warm up again). "
            for path in searches_of(self._model)
        )
        return NonFiniteLoss(
            f"the loss of the batch of graphs {named}{more} {what}. {likely}Look for NaN and "
            "infinities in their fields (GraphStore.from_pyg(..., check_finite=True) finds them), "
            "lower the learning rate, or clip gradients (clip_norm=...); "
            "check_finite=0 leaves losses unchecked",
            tuple(graphs),
        )


def searches_of(model: torch.nn.Module) -> list[str]:
    """The paths of a model's parts that may find more than they have rows for."""
    layers = model.named_modules()
    return [path for path, layer in layers if hasattr(layer, "_staticgraph_overflows")]


def _graphs(ids: Tensor) -> list[int]:
    return [graph for graph in ids.tolist() if graph >= 0]
