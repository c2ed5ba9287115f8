"""LSTM and GRU as unrolled cells, so that a compiled step contains their operations.

``torch.compile`` does not trace ``torch.nn.LSTM`` and ``torch.nn.GRU``. Inside a compiled step this
module applies the same weights step by step; outside it, the stock kernel runs. Equations as in
torch's documentation of the two layers.

Not supported: packed sequences, projections (``proj_size``), and sequences so long that the
unrolled step would take minutes to compile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.text.how_many import how_many

# Steps times layers times directions; each is about ten operations in the compiled step.
MAX_UNROLLED = 128


def _inside_compiled_step(context: BatchContext) -> bool:
    return context.batch is not None and context.real is None


class StaticLSTM(torch.nn.LSTM):
    """``torch.nn.LSTM``, unrolled inside a compiled step."""

    _staticgraph: BatchContext

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As ``torch.nn.LSTM``; step by step inside a compiled step."""
        if not _inside_compiled_step(self._staticgraph):
            return super().forward(input, hx)
        return _unrolled(self, input, None if hx is None else list(hx))


class StaticGRU(torch.nn.GRU):
    """``torch.nn.GRU``, unrolled inside a compiled step."""

    _staticgraph: BatchContext

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As ``torch.nn.GRU``; step by step inside a compiled step."""
        if not _inside_compiled_step(self._staticgraph):
            return super().forward(input, hx)
        return _unrolled(self, input, None if hx is None else [hx])


def _unrolled(rnn: torch.nn.RNNBase, input: Any, states: list[Tensor] | None) -> Any:
    if not isinstance(input, Tensor) or input.dim() != 3 or rnn.proj_size:
        raise NotStatic(
            f"{type(rnn).__name__.removeprefix('Static')} with packed or unbatched input, or with "
            "proj_size, has no static form: give a tensor of three dimensions and no proj_size"
        )
    steps = list((input.transpose(0, 1) if rnn.batch_first else input).unbind(0))
    directions = 2 if rnn.bidirectional else 1
    if len(steps) * rnn.num_layers * directions > MAX_UNROLLED:
        raise NotStatic(
            f"{type(rnn).__name__.removeprefix('Static')} over {how_many(len(steps), 'step')} "
            f"would be unrolled into more than {MAX_UNROLLED} cells: use an aggregation without a "
            "recurrence, or run with mode='eager'"
        )
    count = 2 if isinstance(rnn, torch.nn.LSTM) else 1
    if states is None:
        shape = rnn.num_layers * directions, steps[0].size(0), rnn.hidden_size
        states = [steps[0].new_zeros(shape)] * count
    last: list[list[Tensor]] = [[] for _ in range(count)]
    for layer in range(rnn.num_layers):
        sides: list[list[Tensor]] = []
        for reverse in range(directions):
            number = layer * directions + reverse
            state = [each[number] for each in states]
            outs, state = _one_direction(rnn, f"l{layer}{'_reverse' * reverse}", steps, state)
            sides.append(outs)
            for finals, final in zip(last, state, strict=True):
                finals.append(final)
        steps = [torch.cat(pair, -1) for pair in zip(*sides, strict=True)]
        if rnn.dropout and layer + 1 < rnn.num_layers:
            steps = [torch.nn.functional.dropout(s, rnn.dropout, rnn.training) for s in steps]
    out = torch.stack(steps, 1 if rnn.batch_first else 0)
    final = [torch.stack(parts) for parts in last]
    return out, (tuple(final) if count == 2 else final[0])


def _one_direction(
    rnn: torch.nn.RNNBase, suffix: str, steps: list[Tensor], state: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    reverse = suffix.endswith("_reverse")
    cell = _lstm_cell if isinstance(rnn, torch.nn.LSTM) else _gru_cell
    weights = [getattr(rnn, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh")]
    biases = [
        getattr(rnn, f"{name}_{suffix}") if rnn.bias else None for name in ("bias_ih", "bias_hh")
    ]
    outs = []
    for step in reversed(steps) if reverse else steps:
        from_input = torch.nn.functional.linear(step, weights[0], biases[0])
        from_state = torch.nn.functional.linear(state[0], weights[1], biases[1])
        state = cell(from_input, from_state, state)
        outs.append(state[0])
    return (outs[::-1] if reverse else outs), state


def _lstm_cell(from_input: Tensor, from_state: Tensor, state: list[Tensor]) -> list[Tensor]:
    let_in, forget, new, let_out = (from_input + from_state).chunk(4, -1)
    cell = forget.sigmoid() * state[1] + let_in.sigmoid() * new.tanh()
    return [let_out.sigmoid() * cell.tanh(), cell]


def _gru_cell(from_input: Tensor, from_state: Tensor, state: list[Tensor]) -> list[Tensor]:
    (reset_i, update_i, new_i), (reset_h, update_h, new_h) = (
        from_input.chunk(3, -1),
        from_state.chunk(3, -1),
    )
    update = (update_i + update_h).sigmoid()
    new = (new_i + (reset_i + reset_h).sigmoid() * new_h).tanh()
    return [new + update * (state[0] - new)]
