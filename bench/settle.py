"""Checks on a device what the design assumes about torch's CUDA graphs.

    python -m bench.settle [--json FILE]

Three questions: can a compiled step with a fused, capturable AdamW be recorded; do the counters
detect a silent skip of ``reduce-overhead``; does resetting one of several graphs in a pool harm the
others. Without a device, a question that needs one says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.options import options_of
from bench.parts import answer, only_on_cuda
from bench.rehearsal import recorder as recorder_of
from bench.steps import DEVICE, Uncompiled
from staticgraph.recording.recording_keys import Recording
from staticgraph.steps.compilation.graph_trees import recorded_graphs, skipped_recordings
from staticgraph.steps.state.training_state import SavedTraining

# For float32 sums of two hundred terms in another order, over a few steps of AdamW.
TOLERANCE = 1e-4


def model_and_data() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)).to(DEVICE)
    return model, torch.randn(256, 128, device=DEVICE)


def compiled_adamw_records() -> dict[str, Any]:
    """Compares 20 recorded steps of a compiled forward, its backward and AdamW with eager."""
    results = []
    for recorded in (False, True):
        model, x = model_and_data()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=torch.tensor(1e-2, device=DEVICE), fused=True, capturable=True
        )
        loss_of = torch.compile(lambda m, x: m(x).square().mean()) if recorded else None

        def step(model=model, x=x, optimizer=optimizer, loss_of=loss_of) -> torch.Tensor:
            for parameter in model.parameters():
                parameter.grad = None
            loss = model(x).square().mean() if loss_of is None else loss_of(model, x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = step
        if recorded:
            recorder = Recording(recorder=recorder_of("cuda-graph")).recorder_on(DEVICE)
            recorder.warm(step, 3)  # three real steps; eager runs as many below
            saved = SavedTraining(model, optimizer)
            recording = recorder.record(step)
            saved.restore()

            def run(recording=recording) -> torch.Tensor:
                recording.replay()
                return recording.result.clone()
        else:
            for _ in range(3):
                step()
        losses = [float(run()) for _ in range(20)]
        results.append((losses, [p.detach().clone() for p in model.parameters()]))
    (eager, expected), (replayed, actual) = results
    worst = max(float((a - b).abs().max()) for a, b in zip(actual, expected, strict=True))
    return {
        "records": True,
        "largest_loss_difference": max(abs(a - b) for a, b in zip(eager, replayed, strict=True)),
        "largest_parameter_difference": worst,
        "agrees": worst < TOLERANCE,
        "last_losses": [eager[-1], replayed[-1]],
    }


def silent_skip() -> dict[str, Any]:
    """Tests whether ``reduce-overhead`` records, warns or silently skips a function.

    The cases include an input on the CPU; the two counters of this library must detect a skip.
    """
    import warnings

    answers = {}
    weight = torch.randn(64, 64, device=DEVICE)
    cases = {
        "nothing in the way": (lambda x, s: (x @ weight).relu() * 2, torch.zeros(())),
        "an input on the CPU": (lambda x, s: (x @ weight).relu() * s, torch.tensor(2.0)),
        "an input that is changed": (lambda x, s: x.add_(1) @ weight, torch.zeros(())),
    }
    for name, (function, scale) in cases.items():
        torch.compiler.reset()
        recorded, skipped = recorded_graphs(DEVICE), skipped_recordings()
        compiled = torch.compile(function, mode="reduce-overhead")
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            for _ in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                compiled(torch.randn(32, 64, device=DEVICE), scale)
        recorded, skipped = recorded_graphs(DEVICE) - recorded, skipped_recordings() - skipped
        answers[name] = {
            "graphs_recorded": recorded,
            "skips_counted": skipped,
            "warnings": [
                str(w.message)[:200] for w in heard if w.category is not DeprecationWarning
            ],
            "silent_skip": recorded == 0 and skipped == 0,
        }
    return answers


def resetting_one() -> dict[str, Any]:
    """Resets one of three recordings in a pool, uses memory, and replays the others."""
    model, _ = model_and_data()
    inputs = [torch.randn(64 * (k + 1), 128, device=DEVICE) for k in range(3)]
    recorder = Uncompiled(DEVICE)

    def forward(x: torch.Tensor) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            with torch.no_grad():
                return model(x)

        return run

    recordings = []
    for x in reversed(inputs):
        recorder.warm(forward(x), 3)
        recordings.append(recorder.record(forward(x)))
    expected = [forward(x)().clone() for x in reversed(inputs)]
    recorder._graphs[0].reset()
    torch.cuda.empty_cache()
    filler = [torch.full((1 << 20,), float("nan"), device=DEVICE) for _ in range(64)]
    equal = []
    for recording, wanted in list(zip(recordings, expected, strict=True))[1:]:
        recording.replay()
        torch.cuda.synchronize()
        equal.append(bool(torch.allclose(recording.result, wanted, atol=1e-5)))
    del filler
    return {"others_replay_right": equal, "harmed": not all(equal)}


def main() -> None:
    options = options_of(__doc__, json=Path)
    answer(
        {
            "compiled AdamW records": only_on_cuda(compiled_adamw_records, rehearsed=True),
            "silent skip": only_on_cuda(silent_skip, rehearsed=True),
            # Last: if the answer is yes, the CUDA state of the process is unreliable afterwards.
            "resetting one of several": only_on_cuda(resetting_one),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
