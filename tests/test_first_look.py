"""Taking one step apart: gaps, bytes and shares of the roofline, worked out by hand; and everything
that needs no device, on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.first_look import Noted, Ran, by_kernel, gaps, printed, ran_in
from bench.steps import Contender


def test_gaps_are_what_no_kernel_fills():
    """Two apart, two that overlap, one inside another: busy for 10 + 15 of 40 microseconds."""
    ran = [Ran("a", 100, 110), Ran("b", 125, 135), Ran("c", 130, 140), Ran("d", 131, 132)]
    found = gaps(ran)
    assert found["span_us"] == 40
    assert found["busy_us"] == 25
    assert found["share_of_gaps"] == pytest.approx(15 / 40)
    assert gaps([])["share_of_gaps"] == 0


def kernel(name, start_us, end_us, grid, registers):
    """An event of the profiler's trace."""
    told = {"grid": grid, "registers per thread": registers}
    return {"cat": "kernel", "name": name, "ts": start_us, "dur": end_us - start_us, "args": told}


def test_rows_by_kernel_and_grid_with_bytes_and_roofline():
    """A replay of the third capture: 2,000 bytes in 4 us are 0.5 of a device that moves 1e9 bytes
    per second; two grids are two rows; what a library launches has no bytes."""
    noted, large, little = Noted(), torch.zeros(125, dtype=torch.float64), torch.zeros(25)
    noted.launch("theirs", "inductor", [large])  # warm-up
    for names, grid in (
        (["theirs", "ours"], 2),
        (both := ["ours", "theirs", "ours"], 9),
        (both, 2),
    ):
        noted.captures.append([])
        for name in names:
            given = [large, 7, large, None] if name == "ours" else [little]
            noted.launch(name, "staticgraph.kernels.a.gpu", given, (grid,) * (name == "ours"))
    events = [kernel("ours", 9, 12, [2, 1, 1], 64), kernel("ours", 0, 1, [2, 1, 1], 64)]
    events += [kernel("gemm", 1, 8, [4, 1, 1], 128), kernel("theirs", 8, 9, [1, 1, 1], 32)]
    ran = ran_in({"traceEvents": [*events, {"cat": "cpu_op", "name": "aten::mm"}, {"ph": "M"}]})
    rows = by_kernel(ran, noted, 1e9)
    assert [row["kernel"] for row in rows] == ["gemm", "ours", "theirs"], "the longest first"
    assert (rows[0]["bytes"], rows[0]["module"], rows[0]["registers"]) == (None, None, 128)
    assert (rows[1]["module"], rows[1]["grid"], rows[1]["registers"]) == ("a.gpu", (2, 1, 1), 64)
    assert (rows[1]["launches"], rows[1]["us"], rows[1]["bytes"]) == (2, 4, 2000)
    assert rows[1]["share_of_roofline"] == pytest.approx(0.5)
    assert rows[2]["bytes"] == 100
    assert by_kernel(ran, noted, None)[1]["share_of_roofline"] is None
    assert [row["bytes"] for row in by_kernel(ran[:-1], noted, 1e9)] == [None, 1000, 100]
    other = by_kernel([*ran, ran[-1]], noted, 1e9)
    assert [row["bytes"] for row in other] == [None] * 3, "no capture launched these"
    text = printed(rows)
    assert "50%" in text
    assert "2x1x1" in text


def test_a_time_that_is_not_of_replays_is_refused():
    """As one published speed-up was: the graph was captured, and its work was never run."""

    def report(replays):
        bucket = SimpleNamespace(recordings=2)
        return lambda: SimpleNamespace(buckets=[bucket], replays={"a": replays}, fallbacks=["why"])

    contender = Contender("cuda-graph+kernels", int, report=report(7))
    before = contender.proof()
    assert before == {"recordings": 2, "replays": 7, "fallbacks": ["why"]}
    contender.report = report(17)
    assert contender.refusal(10, before) is None
    assert contender.refusal(11, before) == "11 steps were timed, but 10 replays ran"
    plain = Contender("pyg", int)
    assert plain.refusal(10, plain.proof()) is None


def test_the_micro_part_launches_what_it_names():
    """Each case on CPU tensors, whose launches are noted in place of made."""
    compiled = pytest.importorskip("support.compiled")
    from bench import micro

    names = set()
    for kind in (micro.linear, micro.norms, micro.attention):
        launched = {}
        compiled.noted(launched.update, kind("cpu"))
        for name, call in launched.items():
            names |= {(name.partition(" ")[0], each.name) for each in compiled.noted(call)}
    assert names == {
        ("backward", "linear_small_backward"),
        ("backward", "linear_small_join"),
        ("forward", "linear_small_forward"),
        ("norm", "batch_norm_few_rows_forward"),
        ("norm", "batch_norm_few_rows_backward"),
        ("norm", "batch_norm_statistics"),
        ("norm", "batch_norm_apply"),
        ("norm", "batch_norm_gradient_sums"),
        ("norm", "batch_norm_apply_gradient"),
        ("attention", "graph_attention_forward"),
        ("attention", "graph_attention_backward"),
    }
