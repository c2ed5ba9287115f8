"""Tables of the results for large stores and for overlapped gradients; see :mod:`bench.tables`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from bench.tables import Folder, table


def order(folder: Folder) -> str:
    found = folder.get("large", {})
    rows = [
        (
            row["shuffle"],
            f"{row['graphs']:,}",
            f"{row['histogram_s']:.2f}",
            f"{row['batcher_s'] + row['order_s']:.1f}",
            f"{row['cpu_s']:.1f}",
            f"{row['peak_mib']:,.0f}",
            f"{row['own_mib']:,.0f}",
        )
        for row in found.get("order", ())
    ]
    headers = ("order", "graphs", "histogram, s", "an epoch's order, s", "its CPU, s")
    return table("large", found, (*headers, "peak MiB", "beyond the first of its order"), rows)


def converted(folder: Folder) -> str:
    found = folder.get("large", {})
    row = found.get("convert")
    rows = (
        [
            (
                f"{row['graphs']:,}",
                str(row["shards"]),
                f"{row['bytes'] / 1e6:,.0f}",
                f"{row['convert_s']:.1f}",
                f"{row['graphs_per_s']:,.0f}",
                f"{row['open_s']:.2f}",
                f"{row['histogram_s']:.2f}",
                f"{row['plan_s']:.1f}",
                f"{row['peak_mib']:,.0f}",
            )
        ]
        if row
        else []
    )
    headers = ("graphs", "shards", "MB", "converted in s", "graphs/s", "opened in s")
    return table("large", found, (*headers, "histogram, s", "plan, s", "peak MiB"), rows)


def read(folder: Folder) -> str:
    found = folder.get("large", {})
    rows = [
        (
            row["order"],
            f"{median(row['graphs_per_s']):,.0f}",
            " ".join(f"{rate:,.0f}" for rate in row["graphs_per_s"]),
            f"{row['share']:.0%}",
            f"{1e6 * sum(row['cpu_s']) / sum(row['graphs']):.1f}",
            f"{2**20 * sum(row['device_mib']) / sum(row['graphs']):,.0f}",
        )
        for row in found.get("read", ())
    ]
    headers = ("order", "graphs/s, median", "each turn", "of the order on disk")
    return table("large", found, (*headers, "CPU us a graph", "bytes read a graph"), rows)


def overlap(folder: Folder) -> str:
    found = folder.get("overlap", {})
    some = found.get("rows", ())
    names = [name for name in (some[0]["ms"] if some else ()) if name != "none"]
    rows = [
        (
            f"{row['ranks']} on {row['cores']} cores",
            f"{row['hidden']}",
            f"{row['bytes'] / 2**20:.2f} MiB",
            f"{row['ms']['none']:.0f}",
            *(
                f"{row['ms'][name]:.0f}"
                + (
                    ""
                    if name == "after 1"
                    else f" ({row['of_after'][name]['median']:.2f}: "
                    f"{row['of_after'][name]['p10']:.2f} to {row['of_after'][name]['p90']:.2f})"
                )
                for name in names
            ),
        )
        for row in some
    ]
    headers = ("ranks", "hidden", "gradients", "not sent, ms", "one buffer after the backward, ms")
    more = [f"{name.split()[1]} buffers during it, ms (of the one after)" for name in names[1:]]
    return table("overlap", found, (*headers, *more), rows)


TABLES: dict[str, Callable[[Folder], str]] = {
    "large-order": order,
    "large-convert": converted,
    "large-read": read,
    "overlap": overlap,
}
