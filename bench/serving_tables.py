"""Tables of the results for serving; see :mod:`bench.tables`."""

from __future__ import annotations

from collections.abc import Callable

from bench.tables import Folder, table


def serving(folder: Folder) -> str:
    found = folder.get("serving", {})
    rows = [
        (
            *name.rsplit(", ", 1),
            f"{row['requests_per_s']:,.0f}",
            f"{row['of_plain']:.1f} times" if "of_plain" in row else "-",
            f"{row['p50_ms']:.0f} ms",
            f"{row['p99_ms']:.0f} ms",
            f"{row['model_us']:,.0f} us",
            f"{row['readers_us']:,.0f} us" if row["readers_us"] else "-",
        )
        for name, row in found.get("results", {}).items()
    ]
    headers = ("server", "body", "requests/s", "of plain PyG", "p50", "p99", "own", "readers")
    return table("serving", found, headers, rows)


TABLES: dict[str, Callable[[Folder], str]] = {"serving": serving}
