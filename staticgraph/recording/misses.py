"""What ran in eager because it had no recording, and whether that is allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from staticgraph.errors import NotStatic
from staticgraph.recording.keys import PairKey, RecordingKey
from staticgraph.text.how_many import how_many


class Misses:
    """The keys that were needed after the warm-up but have no recording.

    Args:
        on_miss: ``error``, or ``eager``, which counts them.
    """

    def __init__(self, on_miss: str) -> None:
        self._on_miss = on_miss
        self._counts: Counter[RecordingKey | PairKey] = Counter()

    def note(
        self, key: RecordingKey | PairKey, recorded: Callable[[], Iterable[RecordingKey]]
    ) -> None:
        """Counts a key, whose work may then run in eager.

        Args:
            key: the missing key.
            recorded: returns the keys that are recorded, for the message.

        Raises:
            NotStatic: nothing may run without a recording; the message names the key.
        """
        if self._on_miss != "error":
            self._counts[key] += 1
            return
        there = list(recorded())
        others = {made.autocast for made in there if made.bucket == key.bucket}
        if others and key.autocast not in others:
            raise NotStatic(
                f"{key} has no recording: torch.autocast around the call asks for "
                f"{key.autocast or 'no lower precision'}, and what is recorded computes in "
                f"{' and '.join(sorted(name or 'that of the model' for name in others))}: give "
                "the runner its precision, StaticGraphRunner(..., autocast=torch.bfloat16), in "
                "place of torch.autocast around warmup() or around calls; or pass on_miss='eager'"
            )
        if isinstance(key, PairKey):
            raise NotStatic(
                f"{key} has no recording, and nothing is recorded after warmup(): name its "
                "phase in warmup(phases=('forward', ...)), or pass on_miss='eager'"
            )
        made = ", ".join(map(str, there)) or "none"
        raise NotStatic(
            f"{key} has no recording, and nothing is recorded after warmup(); recorded: "
            f"{made}. Name its phase in warmup(phases=...), or pass on_miss='eager'"
        )

    def sentences(self) -> list[str]:
        """Returns one sentence per key, in the order they were first missed."""
        return [
            f"{key}: no recording, ran in eager {how_many(count, 'time')}; name its phase in "
            "warmup(phases=...)"
            for key, count in self._counts.items()
        ]
