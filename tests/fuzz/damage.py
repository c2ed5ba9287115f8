"""Damage to files, as caused by a faulty disk, an interrupted copy or a careless user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

KINDS = (
    "flip", "set", "truncate", "drop", "insert", "zero", "turn", "append", "exchange", "other",
    "delete",
)  # fmt: skip
ANYWHERE = st.integers(0, 2**20)


@dataclass(frozen=True)
class Damage:
    """One change. File numbers and places are taken modulo the number available.

    Attributes:
        kind: one of :data:`KINDS`; ``turn`` swaps two ranges of a file, ``exchange`` swaps two
            files, ``other`` takes the file from other data of the same kind.
        file: the number of the file.
        place: the position in the file.
        second: the number of another file, another position, or the byte to insert or append.
        length: of the range; the bit for ``flip``, the byte for ``set``.
    """

    kind: str
    file: int
    place: int
    second: int
    length: int

    def apply(self, folder: Path, other: Path) -> None:
        """Changes a file of ``folder``; ``other`` holds the same files for other data."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = files[self.file % len(files)]
        if self.kind == "delete":
            path.unlink()
        elif self.kind == "exchange":
            second = files[self.second % len(files)]
            one, two = path.read_bytes(), second.read_bytes()
            path.write_bytes(two)
            second.write_bytes(one)
        elif self.kind == "other":
            source = other / path.relative_to(folder)
            path.write_bytes(source.read_bytes() if source.exists() else b"")
        else:
            path.write_bytes(self.changed(path.read_bytes()))

    def changed(self, whole: bytes) -> bytes:
        """The contents of one file with the change applied."""
        at = self.place % (len(whole) + 1)
        if self.kind == "append" or not whole:
            return whole + bytes([self.second % 256]) * (1 + self.length % 64)
        if self.kind == "truncate":
            return whole[:at]
        if self.kind == "insert":
            return whole[:at] + bytes([self.second % 256]) * (1 + self.length % 64) + whole[at:]
        at %= len(whole)
        if self.kind == "flip":
            return whole[:at] + bytes([whole[at] ^ 1 << self.length % 8]) + whole[at + 1 :]
        if self.kind == "set":
            return whole[:at] + bytes([self.length % 256]) + whole[at + 1 :]
        end = min(len(whole), at + 1 + self.length % 256)
        if self.kind == "drop":
            return whole[:at] + whole[end:]
        if self.kind == "zero":
            return whole[:at] + bytes(end - at) + whole[end:]
        begin = self.second % len(whole)  # turn
        stretch = min(end - at, abs(begin - at), len(whole) - max(at, begin))
        low, high = min(at, begin), max(at, begin)
        return (
            whole[:low]
            + whole[high : high + stretch]
            + whole[low + stretch : high]
            + whole[low : low + stretch]
            + whole[high + stretch :]
        )


DAMAGES = st.builds(
    Damage,
    st.sampled_from(KINDS),
    st.integers(0, 40),
    ANYWHERE,
    ANYWHERE,
    st.integers(0, 255),
)
