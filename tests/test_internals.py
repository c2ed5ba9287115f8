"""Private APIs of torch: none is used outside ``internals/``, and each name does what it is used
for. With a new torch, failures here and in the ``test_internals_*`` files (tracing,
Inductor, hooks) show what changed."""

from __future__ import annotations

import ast
import importlib
import re
import threading
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint

import staticgraph
from staticgraph.internals import dispatch, fakes, inductor, memory

ROOT = Path(staticgraph.__file__).parent
ROOMS = ("internals", "dryrun/stubs")
PRIVATE = re.compile(r"^torch(\.\w+)*\._[a-z]\w*|^torch\._[A-Z]\w*")


def private_names(source: str) -> list[tuple[int, str]]:
    """Lines and names of private torch APIs, imported or reached by attribute access."""
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
    """Each ``module.name`` appears in this file or in another ``test_internals*`` file."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_internals*.py"))
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
    leaves, spec = dispatch.tree_flatten(value)
    assert isinstance(spec, dispatch.TreeSpec)
    assert dispatch.tree_unflatten(leaves, spec) == value
    assert dispatch.tree_leaves(value) == leaves
    assert dispatch.tree_map(lambda leaf: (leaf,), [1, 2]) == [(1,), (2,)]
    assert dispatch.tree_map_only(int, lambda n: n + 1, value) == {"a": [2, (2.5, None)], "b": 4}


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
        str(dispatch.to_copy.default),
        "aten.add.Tensor",
        "aten.sum.default",
        str(dispatch.read_number),
    ]


class Told(torch.Tensor):
    """Counts the functions called on it."""

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


def test_a_value_that_returns_is_no_write_to_autograd():
    x = torch.ones(3, requires_grad=True)
    y = x.exp() * x
    before = x.detach().clone()
    with torch.inference_mode():
        apart = torch.zeros(1)
    returning = dispatch.preserved_versions([x, apart])
    version = dispatch.version_of(x)
    with torch.no_grad():
        x.add_(1)
        with returning:
            x.copy_(before)
    assert dispatch.version_of(x) == version
    y.sum().backward()
    assert torch.allclose(x.grad, 2 * before.exp())


def test_a_trace_is_that_of_this_thread():
    """torch's own check is True while any thread compiles."""
    compiling, seen = threading.Event(), threading.Event()
    found = []

    def ask():
        compiling.wait(10)
        found.append((torch.compiler.is_compiling(), dispatch.traced_here()))
        seen.set()

    def backend(graph, inputs):
        compiling.set()
        assert seen.wait(10)
        found.append(dispatch.traced_here())
        return graph.forward

    def traced(x):
        return x + (1 if dispatch.traced_here() else 0)

    other = threading.Thread(target=ask)
    other.start()
    result = torch.compile(traced, backend=backend, fullgraph=True)(torch.zeros(2))
    other.join()
    assert result.tolist() == [1, 1]
    assert not dispatch.traced_here()
    (_, there), here = found
    assert (there, here) == (False, True)
    asked = []
    layer = torch.nn.Identity()
    layer.register_forward_hook(lambda *_: asked.append(dispatch.traced_here()))
    torch.export.export(layer, (torch.zeros(2),), strict=False)
    assert asked == [True]


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
    dispatch.copy_all(targets, sources)
    assert all(torch.equal(a, b) for a, b in zip(targets, sources, strict=True))
    copies = dispatch.copies_of(sources)
    assert all(torch.equal(a, b) for a, b in zip(copies, sources, strict=True))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(copies, sources, strict=True))


def arguments(operator) -> list[tuple[str, str]]:
    schema = operator.default._schema.arguments
    return [(argument.name, str(argument.type)) for argument in schema]


def test_operators_take_what_they_are_given():
    """Operators that run only on CUDA are checked by their arguments' names and order."""
    assert [name for name, _ in arguments(dispatch.addmm_activation)] == [
        *("self", "mat1", "mat2", "beta", "alpha", "use_gelu")
    ]
    a, b, bias = torch.randn(4, 3), torch.randn(3, 2), torch.randn(2)
    found = dispatch.addmm_activation(bias, a, b, use_gelu=False)
    torch.testing.assert_close(found, torch.relu(torch.addmm(bias, a, b)))


# ---------------------------------------------------------------------- the profiler


def test_an_allocation_is_told_by_its_kind():
    with torch.profiler.profile(profile_memory=True) as profiled:
        torch.zeros(1000)
    events = [*profiled.profiler.kineto_results.experimental_event_tree()]
    waiting, kinds = events, set()
    while waiting:
        event = waiting.pop()
        kinds.add(event.tag)
        waiting.extend(event.children)
    assert memory.ALLOCATION in kinds


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
    assert called.count(dispatch.set_grad_enabled) == 2
    assert called.count(dispatch.enter_autocast) == called.count(dispatch.exit_autocast) == 1


def test_operators_say_what_they_change():
    assert isinstance(torch.ops.aten.add, dispatch.OpOverloadPacket)
    assert isinstance(torch.ops.aten.add_.Tensor, dispatch.OpOverload)
    assert torch.ops.aten.add_.Tensor._schema.is_mutable
    assert issubclass(type(torch.ops.higher_order.cond), dispatch.HigherOrderOperator)


def test_packages_have_a_compiler_and_a_loader():
    assert callable(inductor.compile_and_package)
    assert inductor.package_loader().__name__ == "AOTIModelPackageLoader"


def test_shapes_before_a_result_are_those_of_what_it_was_computed_from():
    out, row = torch.nn.Linear(3, 1)(torch.ones(4, 3)), torch.nn.Linear(3, 4)(torch.ones(4, 3))
    before = dispatch.shapes_before
    assert before((out - torch.ones(4)).square().exp()) == {(4, 1)}
    assert before((row - torch.ones(4)).square()) == {(3, 4)}  # the transposed weight
    assert before(torch.ones(4, 4)) is None


def test_fakes_have_a_device_and_no_memory():
    with fakes.FakeTensorMode(allow_non_fake_inputs=True):
        values = torch.zeros(1 << 40, device="cpu")
        assert isinstance(values, fakes.FakeTensor)
        assert (values + 1).shape == (1 << 40,)
        with pytest.raises(RuntimeError):  # what depends on data has no fake
            values[:1].item()


class Noting(dispatch.TorchDispatchMode):
    """Records dispatched functions and their arguments."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, args))
        return func(*args, **(kwargs or {}))


def test_a_look_at_a_fake_tensors_device_is_dispatched():
    """The query comes from C++, as autograd makes it at every node."""
    with fakes.FakeTensorMode():
        made = torch.zeros(3, requires_grad=True)
        with Noting() as noting:
            (made * 2).sum().backward()
    looked = [args[0] for func, args in noting.seen if func is fakes.ask_device]
    assert looked
    assert {tensor.fake_device for tensor in looked} == {made.device}
