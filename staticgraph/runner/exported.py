"""A model that :meth:`StaticGraphRunner.export` wrote, loaded without its source."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import ExportRefused, PlanMismatch
from staticgraph.internals.inductor import package_loader
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.export_manifest import (
    FILE,
    ExportManifest,
    checked_package,
    package_name,
    require_machine,
)
from staticgraph.runner.prediction import predict
from staticgraph.schema import Schema


def verify_exported(
    folder: str | Path, digest: str | None = None
) -> tuple[ExportManifest, list[bytes]]:
    """Checks an exported folder without running any of it.

    Args:
        folder: written by :meth:`StaticGraphRunner.export`.
        digest: what the export returned; if given, the folder must be that export, byte for byte.

    Returns:
        The folder's manifest, whose ``digest`` is the value to compare, and its packages.

    Raises:
        FileNotFoundError: there is no such folder, or it has no manifest.
        ExportRefused: another digest, a package that differs from the manifest, an entry that no
            package has, or code compiled for another torch, processor or device.
    """
    folder = Path(folder).expanduser()
    manifest = ExportManifest.read(folder)
    if digest is not None and digest != manifest.digest:
        raise ExportRefused(
            f"{folder / FILE} has the digest {manifest.digest}, and {digest} was expected: this "
            "is another export, or it was changed; nothing of it ran"
        )
    require_machine(folder, manifest)
    buckets = range(len(manifest.packages))
    return manifest, [checked_package(folder, bucket, manifest) for bucket in buckets]


def load_exported(folder: str | Path, digest: str | None = None) -> ExportedModel:
    """Loads what :meth:`StaticGraphRunner.export` wrote, without the model's source.

    **A package is code** (a shared library), to be trusted like a wheel: load only your own
    folders, or pass the ``digest`` that the export returned, received over a channel that you
    trust. Nothing is unpickled, and nothing runs before the whole folder has been compared with its
    manifest.

    Args:
        folder: the folder of the export.
        digest: what the export returned; any other folder is refused.

    Raises:
        FileNotFoundError, ExportRefused: as :func:`verify_exported`.
    """
    return ExportedModel(*verify_exported(folder, digest))


class ExportedModel:
    """The compiled buckets of a model: ``predict`` and ``predict_batch`` as a runner has them.

    It also has everything that :class:`staticgraph.Server` needs.

    Args:
        manifest: the manifest of the folder.
        packages: the bytes of each bucket's package, already checked.
    """

    def __init__(self, manifest: ExportManifest, packages: list[bytes]) -> None:
        self.manifest = manifest
        self.device: torch.device = torch.device(manifest.device)
        # Exactly the bytes that were checked are loaded; the files are not read again.
        with tempfile.TemporaryDirectory(prefix="staticgraph-") as folder:
            self._loaders = []
            for bucket, content in enumerate(packages):
                path = Path(folder) / package_name(bucket)
                path.write_bytes(content)
                self._loaders.append(package_loader()(str(path), "model", False, 1, -1))

    @property
    def plan(self) -> BucketPlan:
        """The buckets."""
        return self.manifest.plan

    @property
    def pointers(self) -> bool:
        """Whether batches have row pointers."""
        return self.manifest.pointers

    @property
    def schema(self) -> Schema:
        """The fields of a graph."""
        assert self.plan.schema is not None
        return self.plan.schema

    def predict(self, graphs: Any) -> Any:
        """Returns outputs for new graphs; see :meth:`staticgraph.StaticGraphRunner.predict`."""
        return predict(self, graphs, self.schema)

    def predict_batch(self, batch: StaticBatch) -> Any:
        """Returns the output of one batch, over all physical rows.

        Raises:
            PlanMismatch: the batch is of another plan, or lacks row pointers.
        """
        names, tensors = self.manifest.inputs[batch.bucket : batch.bucket + 1], batch.tensors()
        known = names and batch.capacity == self.plan.capacities[batch.bucket]
        if not known or names[0] != tuple(tensors):
            raise PlanMismatch(
                f"a batch of bucket {batch.bucket} with {', '.join(tensors)} is not one of this "
                "model's: use batches of its plan, StaticLoader(store, model.plan, "
                "pointers=model.pointers)"
            )
        flat = self._loaders[batch.bucket].run(list(tensors.values()))
        # Older exports also return a None, which the manifest already holds.
        outputs = [tensor for tensor in flat if tensor is not None]
        return _unflat(self.manifest.output, iter(outputs))


def _unflat(form: Any, tensors: Iterator[Tensor]) -> Any:
    """Nests tensors the way the model's output does."""
    if form == "tensor":
        return next(tensors)
    (kind, items), *_ = form.items()
    if kind == "value":
        return items
    if kind == "dict":
        return {key: _unflat(item, tensors) for key, item in items}
    values = [_unflat(item, tensors) for item in items]
    return tuple(values) if kind == "tuple" else values
