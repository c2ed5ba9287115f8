"""Names of options that a loader does not have, each with what to write instead.

Users of ``torch.utils.data.DataLoader`` bring its options along. An error that only says
"unexpected argument" would leave them to find out which of these the plan already decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

# Options of torch's and PyG's DataLoader -> why a loader has none such, and what to write.
ELSEWHERE = {
    "batch_size": "the plan says how many graphs a batch has: make it with "
    "plan_buckets(store, batch_size=...)",
    "drop_last": "leave it out: the last batch has the shape of the others, and the loss is the "
    "mean over its real graphs; for as many graphs in every batch give indices= a multiple of "
    "plan.batch_size",
    "collate_fn": "batches are filled in fixed shapes; transform= changes each before it is used",
    "pin_memory": "leave it out: what goes to a GPU goes through pinned memory",
    "pin_memory_device": "leave it out: what goes to a GPU goes through pinned memory",
    "prefetch_factor": "leave it out: slots= are the batches that may be alive at once",
    "persistent_workers": "leave it out: workers are threads, of no start worth keeping",
    "multiprocessing_context": "leave it out: workers are threads",
    "worker_init_fn": "leave it out: workers are threads, and draw nothing",
    "generator": "give seed=",
    "timeout": "leave it out: workers are threads of this process",
    "in_order": "leave it out: the order depends on the seed alone",
    "exclude_keys": "leave fields out when the store is made: GraphStore.from_pyg(exclude=[...])",
}


def check_options(names: Iterable[str], known: Collection[str]) -> None:
    """Refuses options that a loader does not have.

    Args:
        names: as written.
        known: the names of all options.

    Raises:
        TypeError: an option is not known; the message says what to write instead.
    """
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]}=?" if near else f"it has {', '.join(sorted(known))}"
        raise TypeError(f"a StaticLoader has no {name}=: {ELSEWHERE.get(name, meant)}")
