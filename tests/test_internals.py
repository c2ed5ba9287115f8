"""Private APIs of torch: none is used outside ``internals/``, and each name does what it is used
for. With a new torch, failures here and in the ``test_internals_*`` files (tracing,
Inductor, hooks) show what changed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint

import staticgraph
from staticgraph.internals import dispatch, fakes, inductor

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


# ---------------------------------------------------------------------- trees


# ---------------------------------------------------------------------- dispatch


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


@pytest.mark.parametrize("number", [1, 2])
def test_an_error_waits_for_whoever_goes_back(number):
    given = [torch.ones(2, requires_grad=True) for _ in range(number)]
    kept = dispatch.delayed_error("no way back", given)
    assert len(kept) == number
    assert all(torch.equal(a, b) for a, b in zip(kept, given, strict=True))
    with pytest.raises(RuntimeError, match="no way back"):
        kept[0].sum().backward()


# ---------------------------------------------------------------------- lists, operators


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


# ---------------------------------------------------------------------- states and packages


def test_operators_say_what_they_change():
    assert isinstance(torch.ops.aten.add, dispatch.OpOverloadPacket)
    assert isinstance(torch.ops.aten.add_.Tensor, dispatch.OpOverload)
    assert torch.ops.aten.add_.Tensor._schema.is_mutable
    assert issubclass(type(torch.ops.higher_order.cond), dispatch.HigherOrderOperator)


def test_packages_have_a_compiler_and_a_loader():
    assert callable(inductor.compile_and_package)
    assert inductor.package_loader().__name__ == "AOTIModelPackageLoader"


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
