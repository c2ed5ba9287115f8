"""Taking one step apart: gaps, bytes and shares of the roofline, worked out by hand; and everything
that needs no device, on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.bench_runner import milliseconds
from bench.figures import NOT_MEASURED, look
from bench.first_look import Noted, Ran, by_name, gaps, noting, printed


def test_gaps_are_what_no_kernel_fills():
    """Two apart, two that overlap, one inside another: busy for 10 + 15 of 40 microseconds."""
    ran = [Ran("a", 100, 110), Ran("b", 125, 135), Ran("c", 130, 140), Ran("d", 131, 132)]
    found = gaps(ran)
    assert found["span_us"] == 40
    assert found["busy_us"] == 25
    assert found["share_of_gaps"] == pytest.approx(15 / 40)
    assert gaps([])["share_of_gaps"] == 0


def test_rows_by_name_with_bytes_and_roofline():
    """Two launches of 1,000 bytes in 4 us are 0.5 of a device that moves 1e9 bytes per second; what
    a library launches has no bytes."""
    noted = Noted()
    tensor = torch.zeros(125, dtype=torch.float64)
    for _ in range(3):
        noted.launch("ours", [tensor, 7, tensor, None])
    ran = [Ran("ours", 0, 1), Ran("gemm", 1, 9), Ran("ours", 9, 12)]
    rows = by_name(ran, noted, 1e9)
    assert [row["kernel"] for row in rows] == ["gemm", "ours"], "the longest first"
    assert rows[0]["bytes"] is None
    assert rows[0]["share_of_roofline"] is None
    assert rows[1]["launches"] == 2
    assert rows[1]["us"] == 4
    assert rows[1]["bytes"] == 2000
    assert rows[1]["share_of_roofline"] == pytest.approx(0.5)
    assert by_name(ran, noted, None)[1]["share_of_roofline"] is None
    text = printed(rows)
    assert "50%" in text
    assert "gemm" in text


def test_launches_are_noted_and_let_through(monkeypatch):
    """Both kinds of Triton kernels, with whatever they return; afterwards nothing is patched."""
    pytest.importorskip("triton")
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton.runtime.jit import JITFunction

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **kwargs: ("ran", kwargs))
    monkeypatch.setattr(CachingAutotuner, "run", lambda self, *args, stream, **kwargs: stream)
    before = JITFunction.run, CachingAutotuner.run

    def kernel(x, out):
        pass

    own = object.__new__(JITFunction)
    own.fn = kernel
    inductors = object.__new__(CachingAutotuner)
    inductors.inductor_meta = {"kernel_name": "triton_poi_fused_add_0"}
    x, out = torch.zeros(8), torch.zeros(4)
    with noting() as noted:
        assert own.run(x, out=out, grid=(1,), warmup=False)[0] == "ran"
        assert inductors.run(x, x, 8, stream=5) == 5
    assert noted.of("kernel") == 48
    assert noted.of("triton_poi_fused_add_0") == 32
    assert noted.of("ampere_sgemm") is None
    assert (JITFunction.run, CachingAutotuner.run) == before


def test_steps_in_a_row_are_all_made():
    made = []
    assert milliseconds(made.append, 3, 4, "cpu") >= 0
    assert made == [3, 4, 5, 6]


def test_the_look_is_told_and_nothing_without_kernels():
    rows = by_name([Ran("a|b", 0, 5)], Noted(), None)
    found = {
        "made": {"model": "gine:5x300"},
        "verify": {"passed": True},
        "host": {"host_us": 41.0},
        "times": {"latency_ms": 0.5, "back_to_back_ms": 0.4},
        "kernels": {"kernels": 1, **gaps([Ran("a|b", 0, 5)]), "rows": rows},
    }
    text = look({"look-gine": found})
    assert "gine:5x300: 1 kernels in 5 us, 0% of it gaps; host 41 us" in text
    assert "| a/b | 1 | 5.0 | - | - |" in text
    assert look({"look-gine": {**found, "kernels": {"answer": "needs a CUDA device"}}}) == (
        NOT_MEASURED
    )
