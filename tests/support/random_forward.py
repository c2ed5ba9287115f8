"""Random forwards: programs over nodes, edges and graphs.

Every step computes a value from earlier ones, in one of torch's forms for it, or changes one in
place. A program is a list of steps as text, so that a failure can be read and pasted.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import utils
from torch_geometric.utils import scatter, softmax

WIDTH = 8
LATER, NEWEST = 10_000, 2**30
UNARY = (
    "{a}.relu()",
    "F.relu({a})",
    "F.leaky_relu({a}, 0.2)",
    "F.silu({a})",
    "F.gelu({a})",
    "F.gelu({a}, approximate='tanh')",
    "torch.tanh({a})",
    "{a} + 0",
    "{a} * 0.5",
    "1.5 - {a}",
    "{a}.contiguous()",
    "{a}.to(torch.float64)",
    "{a}.view(-1, 2, 4).flatten(1)",
    "{a}.T.T",
    "{a}[:]",
    "{a}[:, :1] * torch.ones_like({a})",
    "F.dropout({a}, 0.5, False)",
    "{a}.detach() + {a}",
    "self.product({a})",
    "self.lone({a})",
)
BINARY = (
    "{a} + {b}",
    "{a}.add({b})",
    "torch.add({a}, {b}, alpha=0.5)",
    "torch.sub({a}, {b}, alpha=2)",
    "{a} - {b}",
    "{a} * torch.tanh({b})",
    "{a} / (1 + {b}.abs())",
    "torch.div({a}, {b}.abs() + 1)",
    "torch.where({b} > 0, {a}, {b})",
    "torch.cat(({a}[:, 4:], {b}[:, :4]), dim=1)",
    "({a} + {b}).relu()",
    "{b} + F.relu({a})",
    "{b} + F.dropout({a}.relu(), 0.0)",
)
CHANGES = (
    "{a} += 0.5",
    "{a} += {b}",
    "{a} *= 0.5",
    "{a}.mul_(0.5)",
    "{a}.add_({b}, alpha=0.5)",
    "F.relu({a}, inplace=True)",
    "{a}.tanh_()",
    "{a}[:, 0] = 0",
    "{a}[{a} > 1] = 0",
    "{a}[:, 1:3] *= 2",
    "torch.add({a}, 1.0, out={a})",
)
TO_EDGES = (
    "{a}[src]",
    "{a}[dst]",
    "{a}.index_select(0, src)",
    "torch.index_select({a}, 0, dst)",
    "torch.index_select(input={a}, dim=0, index=src)",
    "{a}.index_select(-2, src)",
)
TO_NODES = (
    "scatter({a}, dst, 0, n)",
    "scatter({a}, dst, 0, n, 'mean')",
    "scatter({a}, dst, 0, n, 'max')",
    "scatter({a}, src, 0, n)",
    "torch.zeros(n, WIDTH, dtype={a}.dtype).index_add(0, dst, {a})",
    "torch.zeros(n, WIDTH, dtype={a}.dtype).index_add_(0, dst, {a}, alpha=2)",
    "{a}.new_zeros(n, WIDTH).scatter_add_(0, dst[:, None].expand(-1, WIDTH), {a})",
    "scatter(softmax({a}[:, :1], dst, num_nodes=n) * {a}, dst, 0, n)",
)
# What later programs draw as well: rows that broadcast, means of integers, indices narrower than
# their rows, zeros of both signs, statistics and hooks that come in the order of the forward.
LATER_UNARY = (
    "{a} * -0.0 + {a}",
    "{a} * torch.signbit({a} * 0.0)",
    "{a} * torch.signbit({a} * -0.0)",
    "{a} + self.norm.running_mean",
    "{a} * self.other.running_var.sqrt()",
)
LATER_CHANGES = (
    "{a}.register_hook(lambda slope: slope * 0.5)",
    "self.norm.running_mean.mul_(0.5)",
    "self.eps.copy_(self.norm.running_mean[0])",
)
LATER_TO_NODES = (
    "{a}.new_zeros(n, WIDTH).scatter_add(0, dst[:, None].expand(-1, 4), {a}.detach())",
    "{a}.new_zeros(n, WIDTH).scatter_add(0, dst[:, None], {a}.detach())",
    "scatter({a}[:, :1] + {a}, dst, 0, n, 'mean')",
)
LATER_NODES = (
    "scatter({a}[:, :1][src] * e0, dst, 0, n)",
    "scatter({a}[:, :1][src] * e0, dst, 0, n, 'mean')",
    "scatter({a}[:, :1][src] * e0, dst, 0, n, 'max')",
    "scatter(({a}[:, :1][src] + e0).relu(), dst, 0, n) + {b}",
    "scatter(({a}[:, :1][src] + e0).relu(), dst, 0, n, 'max')",
    "scatter(F.silu({a}[:, :1][src] + {b}[dst]), dst, 0, n, 'mean')",
    "scatter({a}[src] * e0[:, :1], dst, 0, n, 'mean')",
    "scatter(F.relu({a}[src] + e0) * e0[:, :1].detach(), dst, 0, n)",
    "{a} * scatter(kind[src], dst, 0, n, 'mean')",
    "{a} * scatter(kind[src] - kind[dst], dst, 0, n, 'mean')",
    "{a} * scatter(F.one_hot(kind[:, 0] % 3, WIDTH), batch, 0, batch_size, 'mean')[batch]",
    "{a} * scatter(kind > 1, batch, 0, batch_size, 'mean')[batch]",
    "{a} * torch.zeros(n, 8).long().index_reduce(0, dst, kind[src], 'mean')",
)
# What the newest draw as well: edges in another order, against their direction or some of them, and
# a matrix per edge.
NEWEST_NODES = (
    "scatter(({a}[dst] * e0).tanh(), src, 0, n, 'max')",
    "scatter({a}[dst] + {b}[src], src, 0, n, 'mean') + scatter({a}[src], dst, 0, n, 'min')",
    "scatter(({a}[other[0]] + e0[order]).relu(), other[1], 0, n) + {b}",
    "scatter({a}[other[0]] * {b}[other[1]].sigmoid(), other[1], 0, n, 'max')",
    "scatter(({a}[some[0]] + e0[::2]).tanh(), some[1], 0, n, 'min') * {b}",
    "scatter(softmax({a}[dst][:, :1], src, num_nodes=n) * {b}[dst], src, 0, n)",
    "scatter(torch.einsum('ei,eij->ej', e0, e0[:, :, None] * {a}[src][:, None]), dst, 0, n)",
)
NODES = (
    "self.norm({a})",
    "self.other({a})",
    "self.norm({a} + {b}).relu() + {b}",
    "F.relu(self.other({a})) + {b}",
    "scatter(({a}[src] + self.product({b})[src]).relu(), dst, 0, n) + {a}",
    "scatter(F.relu({a}[src] + e0), dst, 0, n) + (1 + self.eps) * {a}",
    "scatter({a}[src] * e0, dst, 0, n)",
    "scatter({a}, batch, 0, batch_size)[batch]",
    "scatter({a}, batch, 0, batch_size, 'max')[batch] + {b}",
)


def program(seed: int, length: int = 14) -> list[tuple[str, bool]]:
    """Draws steps, each with whether it runs under ``torch.no_grad()``.

    Seeds below :data:`LATER` draw from the earlier forms alone, so that a forward that once failed
    stays the same.
    """
    draw, later, newest = random.Random(seed), seed >= LATER, seed >= NEWEST
    values = {"n": ["h0"], "e": ["e0"]}
    steps: list[tuple[str, bool]] = []
    for number in range(1, length + 1):
        kind = draw.choices(("unary", "binary", "change", "across", "nodes"), (2, 3, 2, 4, 3))[0]
        level = "n" if kind == "nodes" else draw.choice("nne")
        near = values[level][-3:]
        names = {"a": draw.choice(near), "b": draw.choice(values[level])}
        forms = {"unary": UNARY, "binary": BINARY, "change": CHANGES, "nodes": NODES}
        to_nodes = TO_NODES
        if later:
            forms["unary"] += LATER_UNARY
            forms["change"] += LATER_CHANGES
            forms["nodes"] += LATER_NODES
            to_nodes += LATER_TO_NODES
            forms["nodes"] += NEWEST_NODES * newest
        target = level
        if kind == "across":
            text = draw.choice(TO_EDGES if level == "n" else to_nodes)
            target = "e" if level == "n" else "n"
        else:
            text = draw.choice(forms[kind])
        text = text.format(**names)
        if kind != "change":
            name = f"{'h' if target == 'n' else 'e'}{number}"
            values[target].append(name)
            text = f"{name} = {text}"
        without = draw.random() < 0.06
        if later and kind == "change":
            # torch 2.13 ends with a segmentation fault in register_hook of a view, after another
            # view of the same tensor was changed under no_grad.
            without = False
        steps.append((text, without))
        if later and kind in ("unary", "nodes") and draw.random() < 0.2:
            again = draw.choice(LATER_CHANGES).format(a=name)
            steps += [(again, False), (text.replace(name, f"{name}0", 1), False)]
            values[target].append(f"{name}0")
    return steps


def as_text(steps: list[tuple[str, bool]]) -> str:
    """Returns the body of a forward as source code."""
    lines = []
    for text, without in steps:
        lines += ["with torch.no_grad():", f"    {text}"] if without else [text]
    return "\n".join(lines)


class RandomForward(nn.Module):
    """Runs a program, drawn from a seed or given as text, between two encoders and a sum over each
    graph; later programs also return rows of nodes. A text may call ``self.extra``."""

    def __init__(self, seed: int | str, extra: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.bond = nn.Linear(9, WIDTH), nn.Linear(3, WIDTH)
        self.product, self.lone = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm, self.other = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)
        self.register_buffer("eps", torch.tensor(0.25))
        self.extra = extra
        self.steps = as_text(program(seed)) if isinstance(seed, int) else seed
        self.body = _function(self.steps, isinstance(seed, int) and seed >= LATER)

    def forward(self, x: Any, edge_index: Any, edge_attr: Any, batch: Any, batch_size: int):
        h, e = self.first(x.to(self.eps.dtype) / 8), self.bond(edge_attr.to(self.eps.dtype))
        ends = edge_index[0], edge_index[1]
        return self.body(self, h, e, x[:, :WIDTH], edge_index, *ends, batch, batch_size, x.size(0))


def _function(steps: str, several: bool) -> Any:
    names = sorted({word for word in _words(steps) if word[0] in "he" and word[1:].isdigit()})
    nodes = [name for name in names if name[0] == "h"] or ["h0"]
    body = [
        "def body(self, h0, e0, kind, edge_index, src, dst, batch, batch_size, n):",
        "    order = torch.arange(len(src), device=src.device).flip(0)",
        "    other, some = torch.stack([src, dst])[:, order], torch.stack([src, dst])[:, ::2]",
        *(f"    {line}" for line in steps.split("\n")),
        f"    out = scatter({' + '.join(nodes)}, batch, 0, batch_size)",
        f"    return out, {nodes[-1]}" if several else "    return out",
    ]
    scope = {"torch": torch, "F": F, "scatter": scatter, "softmax": softmax, "WIDTH": WIDTH}
    scope |= {"utils": utils, "nn": nn}
    exec(compile("\n".join(body), f"<{hash(steps)}>", "exec"), scope)
    return scope["body"]


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
