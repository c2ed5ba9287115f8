"""Objects that the dry run's tests pass to its child by name: small models, and refused ones."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv, SchNet, global_add_pool, to_hetero
from torch_geometric.utils import scatter

from staticgraph.atoms import NeighbourSearch
from staticgraph.models import build

HIDDEN = 32
LAYERS = 2


def gine(store):
    return build("gine", store, hidden=HIDDEN, layers=LAYERS)


def wide_gine(store):
    """GINE as wide as OGB's; a second layer would launch the same kernels again.

    Rows of 300 numbers are 75 times 16 bytes in float32, or 75 times 8 bytes in bfloat16.
    """
    return build("gine", store, hidden=300, layers=1)


def wide_gcn(store):
    return build("gcn", store, hidden=300, layers=1)


def wide_gat(store):
    return build("gat", store, hidden=300, layers=1, heads=5)


def gps(store):
    return build("gps", store, hidden=HIDDEN, layers=1)


def one_gine(store):
    return build("gine", store, hidden=HIDDEN, layers=1)


def one_gcn(store):
    return build("gcn", store, hidden=HIDDEN, layers=1)


def one_gat(store):
    return build("gat", store, hidden=HIDDEN, layers=1)


def dropout(store):
    return build("gine", store, hidden=300, layers=LAYERS, dropout=0.1)


class Neighbours(nn.Module):
    """A small model with some of everything, for tests that compile it at many capacities.

    Nodes, edges and graphs take memory; one layer has a kernel, and a compiler fuses a sequence of
    operations.
    """

    def __init__(self, store) -> None:
        super().__init__()
        self.inward = GCNConv(store.schema["x"].width, HIDDEN, normalize=False, bias=False)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x, edge_index, batch, batch_size):
        source, target = edge_index
        h = self.inward(x.float(), edge_index)
        message = (h[source] - h[target]).sigmoid().square()
        h = h + torch.zeros_like(h).index_add(0, target, message)
        return self.head(global_add_pool(h.relu(), batch, batch_size))


CUTOFF = 3.0


class Given(nn.Module):
    """Replaces SchNet's radius graph: gives the batch's edges and their lengths."""

    edge_index: torch.Tensor

    def forward(self, pos, batch):
        source, target = self.edge_index
        return self.edge_index, (pos[source] - pos[target]).norm(dim=-1)


class Forces(nn.Module):
    """Energy per graph and force per node, from edges shorter than :data:`CUTOFF`."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.net = SchNet(16, 16, layers, 8, cutoff=CUTOFF, interaction_graph=Given())

    def forward(self, data):
        pos = data.pos.requires_grad_()
        self.net.interaction_graph.edge_index = data.edge_index
        energy = self.net(data.z, pos, data.batch)
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy, -gradient


class MovingAtoms(nn.Module):
    """SchNet-like, with its neighbours found inside: energy per graph and force per node."""

    def __init__(self, layers: int = 3, width: int = 64) -> None:
        super().__init__()
        self.near = NeighbourSearch(CUTOFF, 14.0)
        self.species = nn.Embedding(10, width)

        def dense(columns):
            return nn.Sequential(nn.Linear(columns, width), nn.SiLU(), nn.Linear(width, width))

        self.filters = nn.ModuleList(dense(32) for _ in range(layers))
        self.before = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.after = nn.ModuleList(dense(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("centres", torch.linspace(0, CUTOFF, 32))

    def forward(self, z, pos, batch, num_graphs):
        pos = pos.requires_grad_()
        near = self.near(pos, None, None, batch)
        source, target = near.edge_index
        length = (near.vectors(pos).square().sum(1) + 1e-12).sqrt()
        spread = torch.exp(-10 * (length[:, None] - self.centres).square())
        smooth = 0.5 * (1 + torch.cos(torch.pi * length / CUTOFF)) * near.mask
        h = self.species(z)
        for filters, before, after in zip(self.filters, self.before, self.after, strict=True):
            message = before(h)[source] * filters(spread) * smooth[:, None]
            h = h + after(torch.zeros_like(h).index_add(0, target, message))
        energy = global_add_pool(self.head(h), batch, num_graphs)
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy, -gradient


def forces_loss(out, data):
    energy, force = out
    per_graph = global_add_pool(force.square().sum(1), data.batch, data.num_graphs)
    return (energy.view(-1) - data.y.view(-1)).square() + per_graph


class Encoder(nn.Module):
    """The model passed to ``to_hetero``."""

    def __init__(self) -> None:
        super().__init__()
        self.first = SAGEConv((-1, -1), HIDDEN)
        self.second = SAGEConv((HIDDEN, HIDDEN), 1)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


NODE_TYPES = ("atom", "bond")
EDGE_TYPES = (("atom", "bonded", "atom"), ("atom", "ends", "bond"), ("bond", "joins", "atom"))
WIDTH = 4


class Hetero(nn.Module):
    """One value per graph, from its atoms; the widths are given, so nothing is lazy."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.ModuleDict({kind: nn.Linear(WIDTH, HIDDEN) for kind in NODE_TYPES})
        inner = Encoder()
        inner.first = SAGEConv((HIDDEN, HIDDEN), HIDDEN)
        self.encoder = to_hetero(inner, (list(NODE_TYPES), list(EDGE_TYPES)))

    def forward(self, x_dict, edge_index_dict, batch_dict, batch_size):
        x_dict = {kind: self.into[kind](x) for kind, x in x_dict.items()}
        out = self.encoder(x_dict, edge_index_dict)["atom"]
        return global_add_pool(out, batch_dict["atom"], batch_size)


class Summed(nn.Module):
    """The smallest model that can be trained: anything more takes seconds to compile."""

    def __init__(self, store) -> None:
        super().__init__()
        self.head = nn.Linear(store.schema["x"].width, 1)

    def forward(self, x, batch, batch_size):
        return self.between(global_add_pool(self.head(x.float()).relu(), batch, batch_size))

    def between(self, out):
        return out


class Stopped(Summed):
    """Has an obstacle between the sums and the output; subclasses define it."""

    def between(self, out):
        raise NotImplementedError


class OwnSizes(Summed):
    """Asks the batch's own index for the number of graphs, as models before PyG 2 do."""

    def forward(self, x, batch):
        graphs = int(batch.max()) + 1
        return scatter(self.head(x.float()).relu(), batch, dim=0, dim_size=graphs, reduce="sum")


class OnTheHost(Stopped):
    def between(self, out):
        return torch.sin((out * 2).cpu()).to(out.device) * 3  # the line that is named


class Unsafe(Stopped):
    def between(self, out):
        return torch.ops.dryrun_models.unsafe(out * 2).sin()  # the line that is named


_LIBRARY = torch.library.Library("dryrun_models", "DEF")
_LIBRARY.define("unsafe(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))
_LIBRARY.impl("unsafe", lambda x: x.clone(), "CompositeExplicitAutograd")
torch.library.register_fake("dryrun_models::unsafe", torch.empty_like, lib=_LIBRARY)


torch.library.register_autograd("dryrun_models::unsafe", lambda ctx, grad: grad, lib=_LIBRARY)


class UnsafeBackward(Stopped):
    def between(self, out):
        return torch.ops.dryrun_models.safe(out) * 2  # the line that is named


_LIBRARY.define("safe(Tensor x) -> Tensor")
_LIBRARY.impl("safe", lambda x: x.clone(), "CompositeExplicitAutograd")
torch.library.register_fake("dryrun_models::safe", torch.empty_like, lib=_LIBRARY)
torch.library.register_autograd(
    "dryrun_models::safe", lambda ctx, grad: torch.ops.dryrun_models.unsafe(grad), lib=_LIBRARY
)


class _Hooked:
    """Adam whose step first calls ``what`` eagerly, inside the recorded step."""

    def __init__(self, what) -> None:
        self.what = what

    def __call__(self, parameters):
        adam = torch.optim.Adam(parameters, capturable=True, fused=True)
        first = adam.param_groups[0]["params"][0]

        def before(*_):
            self.what(first.grad)

        adam.register_step_pre_hook(before)
        return adam


reads_a_number = _Hooked(lambda grad: grad.sum().item())  # the line of the host read
copies_to_host = _Hooked(lambda grad: grad.cpu())  # the line of the copy to the host
copies_from_host = _Hooked(lambda grad: grad.add_(torch.ones(grad.shape).to(grad.device)))
works_on_host = _Hooked(lambda grad: torch.ones(8).sin())  # the line on the host
