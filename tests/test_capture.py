"""Captures that fail, and what must hold around every capture, on fake streams."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from contextlib import nullcontext

import pytest
import torch
from support.fake_cuda import FakeCuda, FakeGraph
from support.gine_net import CAPACITIES, Net, adam, batches_of, bce, eager_of
from support.places import AsTraced
from support.runners import made_runner

import staticgraph as sg
from staticgraph.recording.graph_recorder import MISMATCH, CudaGraphRecorder, captured
from staticgraph.recording.recorded_inputs import RecordedInputs

CUDA = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda().install(monkeypatch)


class Uncompiled(CudaGraphRecorder):
    compiles = False


class TestAFailedCapture:
    @pytest.mark.parametrize("device", [0, 1])
    def test_the_first_error_is_raised_and_all_is_as_before(self, cuda, device):
        """The second error is a note; stream, allocator and generator are put back, and the present
        device, which setting a stream of another one changes."""
        recorder = CudaGraphRecorder(torch.device("cuda", device))
        with pytest.raises(RuntimeError, match="a host read of 'norm'") as caught:
            recorder.record(lambda: cuda.refuse("a host read of 'norm'"))
        (note,) = caught.value.__notes__
        assert "could not be ended: RuntimeError: CUDA error: operation failed" in note
        assert cuda.present is cuda.default
        assert cuda.device == 0
        assert not cuda.pools, "the allocator waits for no end of a capture"
        assert not cuda.capturing
        cuda.random()

    def test_its_graph_lives_on(self, cuda, monkeypatch):
        """The pinned memory allocator goes on querying it."""
        made = []

        def graph():
            made.append(weakref.ref(one := FakeGraph(cuda)))
            return one

        monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
        with pytest.raises(RuntimeError):
            CudaGraphRecorder(CUDA).record(lambda: cuda.refuse("a host read"))
        gc.collect()
        assert made[0]() is not None

    def test_a_generator_that_cannot_be_brought_back_is_told_of(self, cuda):
        cuda.breaks_every_capture = True
        with pytest.raises(RuntimeError, match="previous error") as caught:
            CudaGraphRecorder(CUDA).record(lambda: None)
        assert any("start the process again" in note for note in caught.value.__notes__)
        assert cuda.present is not cuda.streams[0]

    def test_the_runner_works_on_in_eager(self, cuda, hiv):
        """What `NotStatic` promises: the same trajectory as without a recorder."""

        class Refused(Net):
            def forward(self, x, edge_index, edge_attr, batch):
                cuda.random()
                cuda.refuse("operation not permitted when stream is capturing")
                return super().forward(x, edge_index, edge_attr, batch)

        model = Refused()
        twin = copy.deepcopy(model)
        runner = made_runner(
            model,
            CAPACITIES,
            "cuda-graph",
            loss=bce,
            optimizer=adam(model),
            recorder=lambda _: Uncompiled(CUDA),
            on_miss="eager",
        )
        told = r"bucket 1 step.*RuntimeError: CUDA error: operation not permitted"
        with pytest.raises(sg.NotStatic, match=told):
            runner.warmup(hiv)
        eager = eager_of(twin, adam(twin))
        for batch in batches_of(hiv, 4):
            assert torch.equal(runner.step(batch), eager.step(batch))
            runner.eval_step(batch)
        assert "ran in eager" in runner.report().fallbacks[0]


class TestBeforeACapture:
    def test_what_nobody_can_reach_is_collected(self, cuda):
        """A cycle that holds a loss holds its parameters' autograd nodes, of another stream."""
        weight = torch.nn.Parameter(torch.ones(3))

        class Holder:
            pass

        gc.disable()
        try:
            holder = Holder()
            holder.me, holder.loss = holder, (weight * 2).sum()
            node = weakref.ref(holder)
            del holder
            assert node() is not None
            CudaGraphRecorder(CUDA).warm(lambda: None, 1)
            assert node() is None
        finally:
            gc.enable()

    @pytest.mark.usefixtures("_uncollected")
    def test_a_loss_that_is_held_is_named(self, cuda):
        def body():
            warnings.warn(f"{MISMATCH} the stream of the node that produced", stacklevel=1)

        recorder = CudaGraphRecorder(CUDA)
        for _ in range(2):
            with pytest.raises(sg.NotStatic, match=r"del loss.*Out and _.*loss\.detach"):
                recorder.warm(body, 3)
        assert cuda.present is cuda.default

    @pytest.mark.usefixtures("_uncollected")
    @pytest.mark.parametrize("fails", [False, True])
    def test_what_follows_waits_for_the_runs(self, cuda, fails):
        """After a failure too: parameters are then restored, which a queued step may still
        write."""

        def body():
            if fails:
                raise ValueError("the second layer")

        with pytest.raises(ValueError, match="second layer") if fails else nullcontext():
            CudaGraphRecorder(CUDA).warm(body, 1)
        assert cuda.log == ["stream 1 waits for default", "default waits for stream 1"]


class TestInsideACapture:
    @pytest.mark.parametrize("fails", [False, True])
    def test_nothing_is_collected(self, cuda, fails):
        """Collecting an unreachable batch in it would give back a slot and record an event."""
        seen = []

        def body():
            seen.append(gc.isenabled())
            if fails:
                cuda.refuse("a host read")

        assert gc.isenabled()
        with pytest.raises(RuntimeError) if fails else nullcontext():
            CudaGraphRecorder(CUDA).record(body)
        assert seen == [False]
        assert gc.isenabled()

    def test_workspaces_of_libraries_are_its_own(self, cuda):
        """They come from its pool: torch's graph trees drop all others, whoever uses them."""
        CudaGraphRecorder(CUDA).record(lambda: cuda.log.append("a product"))
        assert cuda.log == [
            "workspaces dropped",
            "capture begins",
            "a product",
            "capture ends",
            "workspaces dropped",
        ]

    def test_other_threads_may_do_what_they_like(self, cuda):
        """Such as a loader's thread that waits for an event, or one that pins memory."""
        sg.Recording().recorder_on(CUDA).record(lambda: None)
        with pytest.raises(RuntimeError):
            CudaGraphRecorder(CUDA).record(lambda: cuda.refuse("a host read"))
        assert len(cuda.modes) == 3, "the last brings the generator back"
        assert set(cuda.modes) == {"thread_local"}


def test_what_was_compiled_lives_as_long_as_its_recording(cuda, hiv, monkeypatch):
    """It holds constants that every replay reads, and torch drops it on a reset."""
    made = []

    class Made:
        def __init__(self, graph):
            self.forward = graph.forward

        def __call__(self, *inputs):
            return self.forward(*inputs)

    class Compiler(AsTraced):
        def __call__(self, graph, inputs):
            one = Made(graph)
            made.append(weakref.ref(one))
            return one

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", Compiler)
    recording = sg.Recording(recorder=lambda _: CudaGraphRecorder(CUDA))
    runner = sg.StaticGraphRunner(Net(), CAPACITIES[:1], "cuda-graph", recording=recording)
    runner.warmup(hiv)
    torch.compiler.reset()
    gc.collect()
    assert made
    assert all(one() is not None for one in made)
    runner.close()


@pytest.fixture
def _uncollected(monkeypatch):
    """Skip collections: scanning a test process before each capture takes a second."""
    monkeypatch.setattr(gc, "collect", lambda *generation: 0)


@pytest.mark.usefixtures("_uncollected")
class TestTheRecordingStream:
    def test_it_is_one_for_the_life_of_the_process(self, cuda):
        for device in (CUDA, torch.device("cuda")):
            for _ in range(3):
                recorder = CudaGraphRecorder(device)
                recorder.warm(lambda: None, 1)
                recorder.record(lambda: None)
                recorder.close()
        assert len(cuda.streams) == 1

    def test_it_is_no_stream_that_torch_hands_out(self, cuda):
        """torch hands its 32 streams out in turn; a loader's copy must not be in a recording."""
        recorder, handed_out = CudaGraphRecorder(CUDA), []
        for _ in range(40):
            handed_out.append(torch.cuda.Stream(CUDA))
            with pytest.raises(
                RuntimeError
            ):  # the stream that puts a failure right is none, either
                recorder.record(lambda: cuda.refuse("a host read"))
        recorder.record(lambda: handed_out.append(cuda.present))
        assert handed_out.index(handed_out[-1]) == 40
        with pytest.raises(AssertionError, match="a loader's copies"):
            captured(torch.cuda.CUDAGraph(), list, None, handed_out[0])

    def test_a_replay_on_another_stream_waits_for_the_last(self, cuda):
        """Recordings of one stream share its library workspaces, whichever recorder made them."""
        recordings = [CudaGraphRecorder(CUDA).record(lambda: None) for _ in range(2)]
        other = torch.cuda.Stream(CUDA)
        cuda.log.clear()
        recordings[0].replay()
        recordings[1].replay()
        with torch.cuda.stream(other):
            recordings[1].replay()
        recordings[0].replay()
        assert cuda.log == [
            "replay on default",
            "replay on default",
            "stream 2 waits for default",
            "replay on stream 2",
            "default waits for stream 2",
            "replay on default",
        ]

    @pytest.mark.parametrize("phase", ["step", "eval", "forward"])
    def test_a_batch_is_copied_behind_the_last_replay(self, cuda, hiv, monkeypatch, phase):
        """On another stream the copy would overtake the replay that reads the previous batch."""
        take = RecordedInputs.take

        def noted(inputs, *args):
            cuda.log.append(f"copy on {cuda.present.name}")
            take(inputs, *args)

        model = Net()
        runner = made_runner(
            model,
            CAPACITIES,
            "cuda-graph",
            recorder=lambda _: Uncompiled(CUDA),
            loss=bce,
            optimizer=adam(model),
            check_padding=False,
        ).warmup(hiv, phases=[phase])
        monkeypatch.setattr(RecordedInputs, "take", noted)
        call = {"step": runner.step, "eval": runner.eval_step, "forward": runner}[phase]
        batch = batches_of(hiv, 1)[0]
        call(batch)
        cuda.log.clear()
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            call(batch)
        assert cuda.log == [
            "stream 2 waits for default",
            "copy on stream 2",
            "replay on stream 2",
        ]
