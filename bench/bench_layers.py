"""Every layer of the support table, recorded and replayed, and compared with eager.

    python -m bench.bench_layers --json FILE        needs CUDA; a CPU uses a tape instead

Each layer is part of the small model of ``tests/support/layer_model.py``. Its training step is
recorded without Inductor (the table's column *one graph* says which layers compile). Then loss,
gradients and outputs of a replay over data that were not recorded are compared with eager, and each
input field must change the output.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.arena import ArenaRecorder  # noqa: E402
from support.layer_cases import CASES, Case  # noqa: E402
from support.layer_model import model_of  # noqa: E402
from support.parity import BATCH, CAPACITY, STORE, call, loss  # noqa: E402

import staticgraph as sg  # noqa: E402
from bench.options import options_of  # noqa: E402
from bench.parts import answer  # noqa: E402
from bench.steps import DEVICE, Uncompiled  # noqa: E402

# For float64 sums that atomics reorder; layers that PyG computes in float32 have their own.
TOLERANCE = 1e-8


def recorded(case: Case) -> dict[str, Any]:
    """Returns whether a case records, and how far its replay is from eager."""
    if case.eager_only:
        return {"recorded": f"refused: {case.eager_only}"}
    model = model_of(case).to(DEVICE)
    runner = sg.StaticGraphRunner(
        model,
        [sg.Capacity(*CAPACITY)],
        "cuda-graph",
        loss=loss,
        forward=call,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        recording=sg.Recording(
            scope="forward_backward",
            recorder=Uncompiled if DEVICE.type == "cuda" else ArenaRecorder,
        ),
    )
    try:
        runner.warmup(STORE, progress=False)
        verified = runner.verify(BATCH.to(DEVICE))
    except Exception as error:
        return {"recorded": "no", "error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        runner.close()
    largest = max(verified.errors.values())
    right = bool(verified.moved) and largest <= max(TOLERANCE, case.tolerance)
    return {
        "recorded": "yes" if right else "differs",
        "difference": largest,
        "moved": verified.moved,
    }


def layers(cases: list[Case]) -> dict[str, Any]:
    """Records each case; says how many record and replay as eager computes, and the rows."""
    rows = {case.name: recorded(case) for case in cases}
    answers = [row["recorded"] for row in rows.values()]
    return {"yes": answers.count("yes"), "of": len(answers), "layers": rows}


def main() -> None:
    options = options_of(__doc__, json=Path, count=len(CASES))
    answer({"layers": lambda: layers(CASES[: options.count])}, options.json)


if __name__ == "__main__":
    main()
