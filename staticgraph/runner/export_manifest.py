"""What an exported folder says of itself, and what is checked before any of it runs.

An AOTInductor package is a shared library, so it is code: whoever wrote the folder runs with the
rights of whoever loads it, as with a wheel. The protection is to run nothing until it is known to
be what was exported. ``export.json`` is JSON and holds the SHA-256 of every package; its own
SHA-256 is the *digest* that :meth:`StaticGraphRunner.export` returns and ``load_exported(folder,
digest=...)`` demands. File names are made here, not read. The entries of a package are checked,
since torch unpacks a package by the names of its entries. Code compiled for another version,
processor or device is refused with an explanation, where it would otherwise crash.

How many categories each integer column has, read from a model's embedding tables.

An HTTP request body may hold any number, and a number that an embedding table has no row for fails
in the model, on a GPU for good. The weights give the number of rows, so a model of the zoo, or its
checkpoint, is enough to reject such a number by name, without any data.
"""

from __future__ import annotations

import hashlib
import io
import platform
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from staticgraph.errors import ExportRefused
from staticgraph.files import document
from staticgraph.files.folder import Kind, repair
from staticgraph.files.versions import STEPS, versions
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import Schema

FILE, FORMAT, VERSION = "export.json", "staticgraph.export", 1
# What an AOTInductor package holds. Anything else, above all an exported program with pickles, was
# not written by this library.
ENDINGS = {".so", ".json", ".cpp", ".o", ".cubin", ".h", ".txt", ".s", ".S", ".bin"}
PLAIN = {"archive_format", "archive_version", "byteorder", "serialization_id", "version"}
# Instruction sets that a compiler uses where the processor has them.
SETS = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "amx", "neon", "asimd", "sve", "bf16", "i8mm")


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """An exported folder's ``export.json``.

    Attributes:
        plan: the buckets, with the fields of a graph.
        packages: the SHA-256 of each bucket's package, in hexadecimal digits.
        inputs: the names of the tensors that each bucket's package takes, in order.
        output: how tensors are nested in the output; see
            :func:`staticgraph.runner.export.form`.
        pointers: whether batches have row pointers.
        device: ``cpu`` or ``cuda``.
        model: the name of the model's class, for people.
        versions: the versions of Python, torch and PyG that made the export.
        machine: the processor or the GPU that the code was compiled for.
        digest: the SHA-256 of the file.
        categories: integer field -> the number of categories of each of its columns, as far as the
            model's embedding tables tell; fields listed here take no other numbers.
    """

    plan: BucketPlan
    packages: tuple[str, ...]
    inputs: tuple[tuple[str, ...], ...]
    output: Any
    pointers: bool
    device: str
    model: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    digest: str = ""
    categories: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def save(self, folder: Path) -> str:
        """Writes the file; returns its digest."""
        values = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "device": self.device,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "pointers": self.pointers,
            "output": self.output,
            "inputs": [list(names) for names in self.inputs],
            "packages": list(self.packages),
            "categories": {name: list(sizes) for name, sizes in self.categories.items()},
            "plan": self.plan.to_dict(),
        }
        document.save(folder / FILE, values)
        return digest_of((folder / FILE).read_bytes())

    @classmethod
    def read(cls, folder: Path) -> ExportManifest:
        """Reads the manifest alone; puts back a folder whose replacement was killed.

        Raises:
            FileNotFoundError: the folder has no manifest.
            ExportRefused: the file is not a manifest of this version.
        """
        repair(folder)
        if not (folder / FILE).is_file():
            raise FileNotFoundError(
                f"{folder} has no {FILE}: make it with runner.export({str(folder)!r})"
            )
        content = (folder / FILE).read_bytes()  # the bytes hashed are those parsed
        manifest = document.read_document(
            folder / FILE, "an exported model", _build, ExportRefused, content
        )
        return replace(manifest, digest=digest_of(content))


def _build(values: dict[str, Any]) -> ExportManifest:
    """Returns the manifest of these values, without its digest."""
    if (values.get("format"), values.get("version")) != (FORMAT, VERSION):
        raise ValueError(
            f"not an exported model of version {VERSION}, but {values.get('format')!r} "
            f"{values.get('version')!r}: export it again"
        )
    plan = BucketPlan.from_dict(values["plan"])
    packages = tuple(map(_text, _list(values["packages"])))
    inputs = tuple(tuple(map(_text, _list(names))) for names in _list(values["inputs"]))
    if not len(packages) == len(inputs) == len(plan.capacities) or plan.schema is None:
        raise ValueError("it has not one package a bucket, or no fields")
    _check_form(values["output"])
    machine = {_text(key): value for key, value in values["machine"].items()}
    machine["instructions"] = list(map(_text, _list(machine.get("instructions", []))))
    categories = _categories(values.get("categories", {}), plan.schema)
    return ExportManifest(
        plan,
        packages,
        inputs,
        values["output"],
        bool(values["pointers"]),
        _text(values["device"]),
        _text(values["model"]),
        {_text(key): _text(value) for key, value in values["versions"].items()},
        machine,
        categories=categories,
    )


def _categories(values: dict[str, Any], schema: Schema) -> dict[str, tuple[int, ...]]:
    """Validates the categories, which arrays are compared with; older exports have none."""
    width = {item.name: item.width for item in schema}
    categories = {_text(name): tuple(_list(sizes)) for name, sizes in values.items()}
    for name, sizes in categories.items():
        if len(sizes) != width.get(name) or not all(type(n) is int and n > 0 for n in sizes):
            raise ValueError(f"categories of {name!r} that are no number for each of its columns")
    return categories


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a text should be")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} where a list should be")
    return value


def _check_form(form: Any) -> None:
    """Refuses values that :func:`staticgraph.runner.export.form` does not return."""
    if form == "tensor":
        return
    ((kind, items),) = form.items()
    if kind == "dict":
        for key, item in _list(items):
            if not isinstance(key, str | int):
                raise TypeError(f"{key!r} for a key")
            _check_form(item)
    elif kind in ("tuple", "list"):
        for item in _list(items):
            _check_form(item)
    elif kind != "value":
        raise ValueError(f"an output collected in {kind!r}")


def package_name(bucket: int) -> str:
    """The file name of a bucket's package."""
    return f"bucket-{bucket}.pt2"


def files_of(values: Mapping[str, Any]) -> list[str]:
    """The names of the files next to the manifest, given its values."""
    return [package_name(bucket) for bucket in range(len(values["packages"]))]


KIND = Kind("model exported by this library", FORMAT, FILE, files_of)


def digest_of(content: bytes) -> str:
    """Returns the SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def machine_of(device: str) -> dict[str, Any]:
    """What compiled code depends on in this machine."""
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return {"arch": platform.machine(), "capability": f"{major}.{minor}"}
    return {"arch": platform.machine(), "instructions": _instructions()}


def _instructions() -> list[str]:
    """The processor's instruction sets, as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [torch.backends.cpu.get_cpu_capability()]
    words = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return sorted({w for w in words.partition(":")[2].split() if w.startswith(SETS)})


def require_machine(folder: Path, manifest: ExportManifest) -> None:
    """Refuses an export that was compiled for something other than this process and machine.

    Raises:
        ExportRefused: the message says what differs.
    """
    if (difference := _difference(manifest)) is not None:
        raise ExportRefused(f"{folder}: {difference}")


def _difference(manifest: ExportManifest) -> str | None:
    here = versions(STEPS)
    exported_with, installed = manifest.versions.get("torch", "?"), here["torch"]
    if exported_with.partition("+")[0] != installed.partition("+")[0]:
        return (
            f"this model was exported with torch {exported_with}, and here is torch {installed}: "
            "compiled code fits the version that made it; export it again with this one"
        )
    if manifest.device not in ("cpu", "cuda"):
        return f"this model was exported for {manifest.device!r}: use cpu or cuda"
    if manifest.device == "cuda" and not torch.cuda.is_available():
        return (
            "this model was exported for CUDA, and torch finds no GPU here: export it from a "
            "runner on the CPU"
        )
    machine = machine_of(manifest.device)
    if manifest.machine.get("arch") != machine["arch"]:
        return (
            f"this model was compiled for {manifest.machine.get('arch')}, and this machine is "
            f"{machine['arch']}: export it on such a machine"
        )
    lacking = {*manifest.machine.get("instructions", ())} - {*machine.get("instructions", ())}
    if lacking:
        return (
            f"this model was compiled for a processor with {', '.join(sorted(lacking))}, which "
            "this one lacks: export it on a machine like this one"
        )
    wanted, present = manifest.machine.get("capability"), machine.get("capability")
    if wanted != present:
        return (
            f"this model was compiled for a GPU of capability {wanted}, and this one has "
            f"{present}: export it on such a GPU"
        )
    return None


def checked_package(folder: Path, bucket: int, manifest: ExportManifest) -> bytes:
    """Reads a package whose bytes are those that the manifest records.

    Raises:
        ExportRefused: the bytes differ, or the package has entries that no package has.
    """
    path = folder / package_name(bucket)
    try:
        if not path.is_file():  # reading a pipe would never end
            raise FileNotFoundError("no such file")
        content = path.read_bytes()
    except OSError as error:
        raise ExportRefused(f"{path} cannot be read ({error}): export it again") from error
    if (digest := digest_of(content)) != manifest.packages[bucket]:
        raise ExportRefused(
            f"{path} has the SHA-256 {digest}, and {FILE} says {manifest.packages[bucket]}: it was "
            "changed or cut short; export it again"
        )
    check_entries(path, content)
    return content


def check_entries(path: Path, content: bytes) -> None:
    """Refuses a package with an entry that would be written elsewhere or does not belong there.

    Args:
        path: the package's path, for the message; the file is not read again.
        content: the bytes of the package, which are what will be loaded.

    Raises:
        ExportRefused: the message names the entry.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise ExportRefused(f"{path} is not a package ({error}): export it again") from error
    for name in names:
        entry = PurePosixPath(name)
        inside = not entry.is_absolute() and ".." not in entry.parts and "\\" not in name
        known = len(entry.parts) == 2 and entry.name in PLAIN
        known |= entry.parts[1:2] == (".data",) and entry.name in PLAIN
        known |= entry.parts[1:4] == ("data", "aotinductor", "model") and entry.suffix in ENDINGS
        if not (inside and known):
            raise ExportRefused(
                f"{path} holds {name!r}, which no package of AOTInductor has: it was not made by "
                "runner.export; do not load it"
            )


ENCODERS = {"x": "node_encoder", "edge_attr": "edge_encoder"}


def categories_of(weights: Mapping[str, Tensor], schema: Schema) -> dict[str, tuple[int, ...]]:
    """Maps each integer field to the number of categories of each of its columns.

    Args:
        weights: ``state_dict()`` of a model of the zoo; of other models nothing is known.
        schema: the fields of a graph.
    """
    tables = {name: _table_sizes(weights, part) for name, part in ENCODERS.items()}
    width = {item.name: item.width for item in schema}
    return {
        name: sizes for name, sizes in tables.items() if sizes and width.get(name) == len(sizes)
    }


def _table_sizes(weights: Mapping[str, Tensor], part: str) -> tuple[int, ...]:
    """The number of rows of each of an encoder's embedding tables; empty if it has none."""
    sizes = []
    while (table := weights.get(f"{part}.tables.{len(sizes)}.weight")) is not None:
        sizes.append(len(table))
    return tuple(sizes)
