"""Tables of the results for serving; see :mod:`bench.tables`."""

from __future__ import annotations

from collections.abc import Callable

from bench.tables import NOT_MEASURED, Folder, table


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


def serving_line(folder: Folder) -> str:
    """Returns the sentence about serving in the guide."""
    results = folder.get("serving", {}).get("results", {})
    if not results:
        return NOT_MEASURED
    ours = [row for name, row in results.items() if name.startswith("staticgraph,")]
    plain = [results[f"plain PyG, {kind}"] for kind in ("json", "compact")]
    times = sorted(row["of_plain"] for row in ours)
    p99 = max(row["p99_ms"] / other["p99_ms"] for row, other in zip(ours, plain, strict=True))
    where = folder["serving"].get("processor", "2 shared CPU cores, load 1,")
    return (
        f"On {where} it answers at least {times[0]:.1f} times the requests\n"
        f"of FastAPI with plain PyG, with at most {p99:.0%} of its p99."
    )


TABLES: dict[str, Callable[[Folder], str]] = {"serving": serving, "serving-line": serving_line}
