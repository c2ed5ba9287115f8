"""Live storages, compared with counts by hand and with the profiler's view of a kernel."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from staticgraph.probing.allocator import ProfilerAllocator
from staticgraph.probing.live_storages import LiveStorages


@pytest.mark.parametrize("heads_first", [False, True])
def test_what_attentions_backward_takes_inside_is_what_the_profiler_saw(heads_first):
    """A gradient from blocks of heads is copied; PyG's own already has the required layout."""

    def peak(count, mode):
        with mode:
            made = [
                torch.ones(64, 4, 40, 8)
                if heads_first
                else torch.ones(64, 40, 4, 8).transpose(1, 2)
                for _ in range(4)
            ]
            grad, q, k, v = made
            out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
            with count, torch.no_grad():
                count.reset_peak()
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    grad, q, k, v, out, sums, 0.0, False
                )
        return count.peak() if isinstance(count, _Profiled) else count.peak_bytes

    counted = peak(LiveStorages(casts=True), FakeTensorMode())
    seen = peak(_Profiled(), nullcontext())
    each = 64 * 40 * 32 * 4
    assert counted == (3 + heads_first) * each
    assert abs(counted / seen - 1) < 0.03


class _Profiled(ProfilerAllocator):
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


def test_operands_cast_to_a_common_dtype_are_counted_where_asked():
    narrow, wide = torch.ones(1000, dtype=torch.bfloat16), torch.ones(1000)
    for casts, extra in ((True, 4000), (False, 0)):
        live = LiveStorages(casts=casts)
        with live:
            live.watch([narrow, wide])
            kept = narrow * wide
            assert live.peak_bytes == 2000 + 4000 + 4000 + extra
            assert live.live_bytes == 2000 + 4000 + 4000
            torch.where(kept > 0, narrow, narrow)
            assert live.peak_bytes == 2000 + 4000 + 4000 + max(extra, 1000 + 2000)
            del kept
            assert live.live_bytes == 2000 + 4000
