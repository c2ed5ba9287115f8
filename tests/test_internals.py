"""What is used of torch that torch does not promise: each name does what it is used for, and none
is said anywhere else. On a new torch, what fails here is what moved."""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from torch.utils.flop_counter import FlopCounterMode

import staticgraph
from staticgraph.internals import (
    checkpoints,
    copies,
    dispatch,
    fakes,
    foreach,
    inductor,
    memory_pool,
    operators,
    packages,
    profiler_events,
    shapes,
    states,
    tracing,
    trees,
)

ROOT = Path(staticgraph.__file__).parent
ROOMS = ("internals", "dryrun/stubs")
PRIVATE = re.compile(r"^torch(\.\w+)*\._[a-z]\w*|^torch\._[A-Z]\w*")


def private_names(source: str) -> list[tuple[int, str]]:
    """Lines and names of torch with an underscore: imported, or reached through dots."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            if node.attr == "_version":
                names.append("torch._version")
        else:
            continue
        found += [(node.lineno, name) for name in names if PRIVATE.match(name)]
    return found


def test_private_names_of_torch_stand_in_their_rooms():
    files = [p for p in ROOT.rglob("*.py") if not str(p.relative_to(ROOT)).startswith(ROOMS)]
    assert len(files) > 300
    found = [
        f"{path}:{line} says {name}: it belongs in internals/"
        for path in files
        for line, name in private_names(path.read_text())
    ]
    assert found == []


def test_a_private_name_is_seen_however_it_is_reached():
    said = """import torch._dynamo
from torch.utils._pytree import tree_map
from torch import _guards
torch._foreach_copy_(a, b)
torch.ops.aten._to_copy
x._version
torch._C._functions
"""
    assert {line for line, _ in private_names(said)} == {1, 2, 3, 4, 5, 6, 7}
    assert private_names("import torch\ntorch.__version__\nfrom torch.fx import Node\n") == []


def test_every_name_of_the_room_has_a_test():
    """By its name, in this file."""
    text = Path(__file__).read_text()
    for path in sorted((ROOT / "internals").glob("[a-z]*.py")):
        module = importlib.import_module(f"staticgraph.internals.{path.stem}")
        names = [n for n in vars(module) if not n.startswith("_")]
        own = getattr(module, "__all__", None) or [
            n
            for n in names
            if getattr(vars(module)[n], "__module__", None) == module.__name__ or n.isupper()
        ]
        assert own, path
        for name in own:
            assert re.search(rf"\b{path.stem}\.{name}\b", text), f"{path.stem}.{name} has no test"


# ---------------------------------------------------------------------- trees


def test_trees_are_flattened_and_put_together_again():
    value = {"a": [1, (2.5, None)], "b": 3}
    leaves, spec = trees.tree_flatten(value)
    assert isinstance(spec, trees.TreeSpec)
    assert trees.tree_unflatten(leaves, spec) == value
    assert trees.tree_leaves(value) == leaves
    assert trees.tree_map(lambda leaf: (leaf,), [1, 2]) == [(1,), (2,)]
    assert trees.tree_map_only(int, lambda n: n + 1, value) == {"a": [2, (2.5, None)], "b": 4}


# ---------------------------------------------------------------------- dispatch


def test_a_mode_sees_every_operation():
    class Seen(dispatch.TorchDispatchMode):
        names: list[str] = []  # noqa: RUF012

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert isinstance(func.overloadpacket, dispatch.OpOverloadPacket)
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    with Seen() as seen:
        x.to(torch.float64)
        (x + 1).sum().item()
    assert seen.names == [
        str(operators.to_copy.default),
        "aten.add.Tensor",
        "aten.sum.default",
        str(operators.read_number),
    ]


class Told(torch.Tensor):
    """Notes that a function was called on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_is_looked_at_without_its_own_function():
    told = torch.ones(3).as_subclass(Told)
    Told.calls = 0
    with dispatch.DisableTorchFunctionSubclass():
        assert told.shape == (3,)
        told + 1
    with dispatch.DisableTorchFunction():
        told + 1
    assert Told.calls == 0
    told + 1
    assert Told.calls > 0


def test_the_backward_pass_that_a_thread_is_in_has_a_number():
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append(dispatch.current_graph_task()))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert len(set(seen)) == 2
    assert min(seen) >= 0
    assert dispatch.current_graph_task() == -1


def test_versions_count_writes():
    x = torch.zeros(3)
    before = dispatch.version_of(x)
    x.add_(1)
    assert dispatch.version_of(x) == before + 1
    x + 1
    assert dispatch.version_of(x) == before + 1


@pytest.mark.parametrize("number", [1, 2])
def test_an_error_waits_for_whoever_goes_back(number):
    given = [torch.ones(2, requires_grad=True) for _ in range(number)]
    kept = dispatch.delayed_error("no way back", given)
    assert len(kept) == number
    assert all(torch.equal(a, b) for a, b in zip(kept, given, strict=True))
    with pytest.raises(RuntimeError, match="no way back"):
        kept[0].sum().backward()


# ---------------------------------------------------------------------- lists, operators


def test_lists_are_written_and_copied_in_one_call():
    targets, sources = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.full((3,), 2.0)]
    foreach.copy_all(targets, sources)
    assert all(torch.equal(a, b) for a, b in zip(targets, sources, strict=True))
    copies = foreach.copies_of(sources)
    assert all(torch.equal(a, b) for a, b in zip(copies, sources, strict=True))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(copies, sources, strict=True))


def arguments(operator) -> list[tuple[str, str]]:
    schema = operator.default._schema.arguments
    return [(argument.name, str(argument.type)) for argument in schema]


def test_operators_take_what_they_are_given():
    """Of those that run on CUDA alone: the arguments, in their order."""
    names = [name for name, _ in arguments(operators.efficient_forward)]
    assert names[:11] == [
        *("query", "key", "value", "bias", "cu_seqlens_q", "cu_seqlens_k"),
        *("max_seqlen_q", "max_seqlen_k", "dropout_p", "custom_mask_type", "compute_log_sumexp"),
    ]
    names = [name for name, _ in arguments(operators.efficient_backward)]
    assert names[:6] == ["grad_out_", "query", "key", "value", "bias", "out"]
    assert [name for name, _ in arguments(operators.addmm_activation)] == [
        *("self", "mat1", "mat2", "beta", "alpha", "use_gelu")
    ]
    a, b, bias = torch.randn(4, 3), torch.randn(3, 2), torch.randn(2)
    found = operators.addmm_activation(bias, a, b, use_gelu=False)
    torch.testing.assert_close(found, torch.relu(torch.addmm(bias, a, b)))


# ---------------------------------------------------------------------- fakes, tracing


def test_fakes_have_a_device_and_no_memory():
    with fakes.FakeTensorMode():
        made = torch.zeros(1 << 40, device="cpu")
        assert isinstance(made, fakes.FakeTensor)
        assert (made + 1).shape == (1 << 40,)


class Noting(dispatch.TorchDispatchMode):
    """Notes what is dispatched."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, args))
        return func(*args, **(kwargs or {}))


def test_a_look_at_a_fake_tensors_device_is_dispatched():
    """From C++, as autograd does at every node."""
    with fakes.FakeTensorMode():
        made = torch.zeros(3, requires_grad=True)
        with Noting() as noting:
            (made * 2).sum().backward()
    looked = [args[0] for func, args in noting.seen if func is fakes.ask_device]
    assert looked
    assert {tensor.fake_device for tensor in looked} == {made.device}


OF_ALL_KINDS = {
    "view": lambda x, i: x.view(3, 8),
    "a view of dimensions of 1": lambda x, i: x[:1].view(1, 4, 1).expand(5, 4, 1),
    "slice": lambda x, i: x[1:5:2, 1:],
    "select": lambda x, i: x[2],
    "transposed": lambda x, i: x.t() + 1,
    "permuted": lambda x, i: x.view(2, 3, 4).permute(2, 0, 1).clone(),
    "squeezed": lambda x, i: x.unsqueeze(1).squeeze(1),
    "product": lambda x, i: x @ x.t(),
    "sum and product": lambda x, i: torch.addmm(x[0, :3], x, x.t()[:, :3]),
    "products": lambda x, i: torch.bmm(x.view(2, 3, 4), x.view(2, 4, 3)),
    "cat": lambda x, i: torch.cat([x, x.t().reshape(6, 4)], 1),
    "stack": lambda x, i: torch.stack([x, x], 1),
    "split": lambda x, i: x.split(4),
    "split at": lambda x, i: x.split([1, 5]),
    "unbound": lambda x, i: x.unbind(1),
    "of two dtypes": lambda x, i: x.half() * x + i[:, None],
    "a number": lambda x, i: 2 - i / 3,
    "where": lambda x, i: torch.where(x > 0, x, 0.0),
    "sums": lambda x, i: (x.sum(), x.sum(0, keepdim=True), i.sum(dtype=torch.float64)),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(6, 4)),
    "scattered": lambda x, i: torch.zeros(9, 4).scatter_add_(0, i[:, None].expand(6, 4), x),
    "rows": lambda x, i: (x[i], x.index_select(0, i), torch.zeros(9, 4).index_add(0, i, x)),
    "softmax": lambda x, i: x.t().softmax(1),
    "rows broadcast": lambda x, i: (x * x[:, :1], x[0] - x, x[:, :1] + x[0], x / x.sum(), x[1:2]),
    "rows transposed": lambda x, i: (x.t() * 2, x.t() / x.t(), x.t().relu(), x[:, 1:] + x[:, 1:]),
    "functions of rows": lambda x, i: (
        x.exp(),
        x.sqrt(),
        x.relu(),
        x.tanh(),
        x.sigmoid(),
        x.clamp(0, 1),
        x**2,
        -x,
        x.abs(),
        x.rsqrt(),
        x.clamp(min=0.5),
        x.log(),
        x.maximum(x[0]),
    ),
    "numbers of rows": lambda x, i: (i + 1, i * 2.5, i / 2, i * i, i.clamp(min=1), i.float() * 2),
    "truths": lambda x, i: (
        x > 0,
        i == 2,
        i == 2.5,
        x != x[0],
        (x > 0) & (x < 1),
        (i > 0) | (i < 3),
        (x > 0) & True,
        (i > 0)[:, None] & (x < 1),
        i & 3,
        i & i,
        x.t() > 0,
        ~(i > 0),
    ),
    "where of rows": lambda x, i: (
        torch.where(i[:, None] > 0, x, x * 2),
        torch.where(x[:1] > 0, x, x[:1]),
        torch.where(x > 0, x, i[:, None]),
        torch.where(x > 0, x.t().reshape(6, 4), x[:, :1]),
        torch.where(i[:, None] > 0, x[:1], 0.0),
        x[:, :1] * x[:1],
    ),
    "cat of rows": lambda x, i: (
        torch.cat([x, x[:2]]),
        torch.cat([x, x], -1),
        torch.cat([x, x.half()]),
        torch.cat([i, i]),
        torch.cat([x, torch.empty(0)]),
        torch.cat([x[:, :1], x], dim=1),
    ),
    "products of rows": lambda x, i: (
        x.t() @ x,
        torch.addmm(x[:, :1], x, x.t()[:, :3]),
        torch.addmm(x[0, 0], x, x.t()),
        torch.addmm(x, x, x.t() @ x, beta=0.5),
        torch.nn.functional.linear(x, x, x[:, 0]),
    ),
    "new": lambda x, i: (
        x.new_zeros(3, 2),
        x.new_zeros(4, dtype=torch.long),
        i.new_empty(2),
        x.t().new_zeros(2),
        x.new_empty((2, 3), device="cpu", pin_memory=False),
        i.new_zeros(()),
    ),
    "sums of rows": lambda x, i: (
        x.sum(-1),
        x.sum((0, 1)),
        x.sum([]),
        x.sum(1, keepdim=True),
        x.view(2, 3, 4).sum((0, -1)),
        x.t().sum(0),
        x[0, 0].sum(),
        i.sum(0),
        x.sum(0, dtype=torch.float64),
    ),
    "rows taken": lambda x, i: (
        x.index_select(1, i[:2]),
        x.t().index_select(0, i),
        x.gather(1, i[:2, None]),
        x.gather(1, i[:, None].expand(6, 9)),
        x[0].gather(0, i),
        x.clone(),
        x.t().clone(),
        i.clone(),
    ),
    "written to": lambda x, i: (
        torch.zeros(6, 4).add_(x),
        torch.zeros(4, 6).t().mul_(x),
        torch.zeros(6, 4).div_(x[0]),
        torch.zeros(6, 4).add_(i[:, None]),
        torch.zeros(6, dtype=torch.long).add_(i),
    ),
    "in place": lambda x, i: (x.add_(1), x.mul_(2.0)),
    "others": lambda x, i: (x.cumsum(0), torch.nn.functional.layer_norm(x, (4,)), x.amax(1)),
}


@pytest.mark.parametrize("kind", OF_ALL_KINDS)
def test_the_quick_mode_gives_what_torchs_own_gives(kind):
    """Twice, since the second time it may be remembered; with a tape, there and back."""

    def described(mode):
        with mode:
            x = torch.ones(6, 4)
            given = [x, torch.ones(6, 4, requires_grad=True)][kind != "in place"]
            index = torch.zeros(6, dtype=torch.long)
            for _ in range(2):
                out = OF_ALL_KINDS[kind](given, index)
                parts = out if isinstance(out, tuple | list) else [out]
            floats = [part.sum() for part in parts if part.requires_grad]
            if floats:
                torch.stack(floats).sum().backward()
            return [
                (
                    (*part.shape, *part.stride(), part.storage_offset(), part.dtype, part.device),
                    part.untyped_storage().nbytes(),
                    part.untyped_storage()._cdata == given.untyped_storage()._cdata,
                    part is given,
                )
                for part in (*parts, *([given.grad] if floats else []))
            ]

    assert described(fakes.QuickFakeMode()) == described(fakes.FakeTensorMode())


def test_the_quick_modes_fakes_are_made_as_torch_makes_them():
    """Of several, so that those after the first are looked at, too."""

    def made(mode):
        with mode:
            x = torch.ones(6, 4)
            several = [x + 1, x * 2, x @ x.t(), x.relu(), x.relu()]
        for fake in several:
            assert fake.fake_mode is mode
            assert not fake.requires_grad
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert fake.data_ptr() == 0, "as torch's own, which warns"
        apart = ({**vars(fake), "fake_mode": None} for fake in several)
        keys = [torch._C._dispatch_keys(fake) for fake in several]
        return [type(fake) for fake in several], list(apart), keys

    assert made(fakes.QuickFakeMode()) == made(fakes.FakeTensorMode())


@pytest.mark.parametrize("kind", [fakes.FakeTensorMode, fakes.QuickFakeMode])
def test_what_depends_on_data_has_no_fake(kind):
    with kind(allow_non_fake_inputs=True):
        x = torch.ones(6, 4)
        assert (x * torch.tensor(2.0)).shape == x.shape
        for reads in (torch.nonzero, torch.where, torch.Tensor.item):
            with pytest.raises(RuntimeError):
                reads(x[:1, :1])
        with pytest.raises(RuntimeError):
            x.view(5, 5)


def test_shapes_of_operations_over_rows_are_told():
    rows, row = torch.ones(3, 4), torch.ones(4)
    made = shapes.told(torch.ops.aten.add.Tensor, (rows, row), {})
    assert (tuple(made.shape), made.dtype) == ((3, 4), torch.float32)
    assert shapes.told(torch.ops.aten.add_.Tensor, (row, row), {}) is row
    assert shapes.told(torch.ops.aten.nonzero.default, (row,), {}) is None, "torch must say"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_told_as_it_begins(reentrant):
    told = []
    x = torch.ones(3, requires_grad=True)
    with checkpoints.checkpoints_told(lambda: told.append(1)):
        out = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=reentrant)
    assert told == [1]
    torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=reentrant)
    assert told == [1], "nothing is left of it behind the block"
    out.sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def test_what_dynamo_notes():
    """Its counters, the present trace, a constant's source, and an error of its own kind."""
    tracing.forget_compiled()
    inside = []

    def look(graph, inputs):
        inside.append(tracing.TracingContext.try_get())
        return graph.forward

    before = tracing.counters["stats"]["unique_graphs"]
    compiled = torch.compile(lambda x: x + 1, backend=look, fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
    assert tracing.counters["stats"]["unique_graphs"] == before + 1
    assert isinstance(inside[0], tracing.TracingContext)
    assert inside[0].fake_mode is not None

    def refused(graph, inputs):
        raise ValueError("not this one")

    tracing.forget_compiled()
    with pytest.raises(tracing.TorchDynamoException, match="not this one"):
        torch.compile(lambda x: x * 3, backend=refused)(torch.zeros(2))
    assert tracing.ConstantSource("n").source_name == "n"


def test_guards_are_not_timed_inside_in_any_thread(monkeypatch):
    """The number is torch's own; what stands for it goes when the last one leaves."""
    timed = []
    monkeypatch.setattr(
        torch._dynamo.guards, "profile_guard_manager", lambda *_: timed.append(1) or 0.0
    )

    def compiled():
        tracing.forget_compiled()
        step = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
        assert step(torch.zeros(2)).tolist() == [1, 1]

    one, other = tracing.guards_not_timed(), tracing.guards_not_timed()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    compiled()
    assert timed == []
    other.__exit__(None, None, None)
    compiled()
    assert timed == [1]
    tracing.forget_compiled()


def test_options_that_are_not_there_are_left_out():
    with tracing.switched(allow_rnn=True, no_such_option=True):
        assert torch._dynamo.config.allow_rnn
        assert not hasattr(torch._dynamo.config, "no_such_option")


@dataclass
class Plain:
    x: torch.Tensor

    def __post_init__(self):
        self.beside = 5


@dataclass(frozen=True, slots=True)
class Slotted:
    x: torch.Tensor


@pytest.mark.parametrize("kind", [Plain, Slotted])
def test_a_copy_of_an_instance_is_traced(kind):
    def changed(x):
        instance = kind(x)
        made = copies.copied(instance)
        object.__setattr__(made, "x", x + 1)
        return made, instance

    for call in (changed, torch.compile(changed, backend="eager", fullgraph=True, dynamic=False)):
        made, instance = call(torch.zeros(2))
        assert type(made) is kind
        assert made is not instance
        assert made.x.tolist() == [1.0, 1.0]
        assert instance.x.tolist() == [0.0, 0.0]
        if kind is Plain and (call is changed or copies._LOOKS_INTO_OBJECTS):
            assert made.beside == 5
    tracing.forget_compiled()


def test_an_allocation_is_told_by_its_kind():
    with torch.profiler.profile(profile_memory=True) as profiled:
        torch.zeros(1000)
    events = [*profiled.profiler.kineto_results.experimental_event_tree()]
    waiting, kinds = events, set()
    while waiting:
        event = waiting.pop()
        kinds.add(event.tag)
        waiting.extend(event.children)
    assert profiler_events.ALLOCATION in kinds


def test_a_traced_function_is_called_without_frame_evaluation_where_its_guards_hold():
    tracing.forget_compiled()
    factor = [2]

    def scaled(*tensors):
        return tensors[0] * factor[0]

    kept = []

    def backend(graph, inputs):
        kept.append(tracing.drop_guards(lambda kind, name: kind == "TENSOR_MATCH"))
        return graph.forward

    assert tracing.traced(scaled) is None
    x = torch.ones(3)
    torch.compile(scaled, backend=backend, fullgraph=True)(x)
    found = tracing.traced(scaled)
    assert isinstance(found, tracing.Traced)
    assert kept[0] > 0
    assert found.holds({"factor": factor, "tensors": (torch.ones(4),)})  # shapes are dropped
    assert not found.holds({"factor": [3], "tensors": (x,)})
    assert torch.equal(found.run(2 * x), 4 * x)
    tracing.forget_compiled()
    assert torch.equal(found.run(2 * x), 4 * x)


def test_guards_are_looked_at_without_a_mode_that_watches():
    tracing.forget_compiled()

    def doubled(*tensors):
        return tensors[0] * 2

    x = torch.ones(3)
    torch.compile(doubled, backend="eager", fullgraph=True)(x)
    found = tracing.traced(doubled)
    assert found.holds({"tensors": (x,)})
    assert not tracing.watched()
    with FlopCounterMode(display=False):
        assert tracing.watched()
        assert not found.holds({"tensors": (x,)})
        with tracing.unwatched():
            assert not tracing.watched()
            assert found.holds({"tensors": (x,)})
            assert not found.holds({"tensors": (x.double(),)})
        assert tracing.watched()


def test_hooks_of_a_mode_that_counts_are_away_and_come_back_in_their_order():
    """Those of a user stay: torch guards that there are none, and so must a captured step."""
    kept = torch.nn.modules.module._global_forward_hooks
    own = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with FlopCounterMode(display=False):
            before = list(kept)
            assert len(before) > 1
            with tracing.unwatched():
                assert list(kept) == [own.id]
            assert list(kept) == before
        with tracing.unwatched():
            assert list(kept) == [own.id]
    finally:
        own.remove()
    assert not kept


def test_a_stance_is_seen():
    assert tracing.as_usual()
    with torch.compiler.set_stance("force_eager"):
        assert not tracing.as_usual()
    assert tracing.as_usual()


# ---------------------------------------------------------------------- inductor


def test_inductor_compiles_a_graph_for_a_mode(monkeypatch):
    """The graph and its inputs reach Inductor's own entry, with the options of the mode."""
    given = []
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx",
        lambda graph, inputs, config_patches=None, **_: given.append((graph, config_patches)),
    )
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    inductor.inductor("reduce-overhead")(graph, [torch.zeros(1)])
    inductor.inductor(None)(graph, [torch.zeros(1)])
    assert given[0][0] is graph
    assert given[0][1]["triton.cudagraphs"] is True
    assert not (given[1][1] or {}).get("triton.cudagraphs")


def test_there_are_no_trees_without_recordings():
    assert inductor.roots_of_trees(0) == []
    inductor.drop_trees()
    assert inductor.roots_of_trees(0) == []


def test_pieces_are_counted_where_torch_makes_them(monkeypatch):
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "cudagraphify", lambda *args, **kwargs: "made")
    before = compile_fx.cudagraphify
    assert inductor.Pieces().count == 0
    with inductor.counting_pieces() as pieces:
        assert compile_fx.cudagraphify(1, a=2) == "made"
        assert compile_fx.cudagraphify() == "made"
    assert pieces.count == 2
    assert compile_fx.cudagraphify is before


def test_torch_still_records_where_pieces_are_counted():
    """``compile_fx`` calls ``cudagraphify`` by its global name."""
    import torch._inductor.compile_fx as compile_fx
    import torch._inductor.output_code as output_code

    sources = [Path(module.__file__).read_text() for module in (compile_fx, output_code)]
    assert any(re.search(r"import cudagraphify|def cudagraphify", each) for each in sources)


def test_a_source_that_inductor_wrote_is_loaded():
    assert inductor.generated_module("number = 41 + 1\n").number == 42


def test_a_pool_is_given_up_by_the_allocators_own_names(monkeypatch):
    """Which a build with CUDA has."""
    called = []
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        if torch.backends.cuda.is_built():
            assert hasattr(torch._C, name)
        monkeypatch.setattr(
            torch._C, name, lambda *args, name=name: called.append((name, args)), raising=False
        )
    memory_pool.end_allocations(0, (1, 2))
    memory_pool.release(0, (1, 2))
    assert called == [
        ("_cuda_endAllocateToPool", (0, (1, 2))),
        ("_cuda_releasePool", (0, (1, 2))),
    ]


# ---------------------------------------------------------------------- states and packages


def test_regions_stand_in_a_captured_graph():
    def forward(x):
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", torch.bfloat16):
            return y @ x

    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph

    torch.compile(forward, backend=backend)(torch.ones(2, 2))
    called = [node.target for node in seen[0].graph.nodes if node.op == "call_function"]
    assert called.count(states.set_grad_enabled) == 2
    assert called.count(states.enter_autocast) == called.count(states.exit_autocast) == 1


def test_operators_say_what_they_change():
    assert isinstance(torch.ops.aten.add, dispatch.OpOverloadPacket)
    assert isinstance(torch.ops.aten.add_.Tensor, dispatch.OpOverload)
    assert torch.ops.aten.add_.Tensor._schema.is_mutable
    assert issubclass(type(torch.ops.higher_order.cond), dispatch.HigherOrderOperator)


def test_packages_have_a_compiler_and_a_loader():
    assert callable(packages.compile_and_package)
    assert packages.package_loader().__name__ == "AOTIModelPackageLoader"
