"""Fake tensors, a private API of torch: they have a device and no memory, and the quick mode gives
the same results as torch's own mode."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.utils.checkpoint

from staticgraph.internals import dispatch, fakes, shapes


def test_fakes_have_a_device_and_no_memory():
    with fakes.FakeTensorMode():
        made = torch.zeros(1 << 40, device="cpu")
        assert isinstance(made, fakes.FakeTensor)
        assert (made + 1).shape == (1 << 40,)


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
    """Twice, since the second result may be cached; with autograd, forward and backward."""

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
    """Several fakes, so that those after the first are checked too."""

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
