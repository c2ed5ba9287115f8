"""A model of torch-sim's that runs in fixed shapes: its loops keep many systems at once.

torch-sim's integrators, optimizers and autobatching call a model once per step with all systems of
a state. Here they are the graphs of a batch, packed into the runner's buckets: as systems finish
and leave a state, its shapes change, and those that run do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from staticgraph.atoms.stream import make_room
from staticgraph.atoms.structures import named_outputs, with_unknown_fields
from staticgraph.errors import MissingPackage
from staticgraph.runner.runner import StaticGraphRunner

try:
    from torch_sim.models.interface import ModelInterface  # pyright: ignore[reportMissingImports]
except ImportError:
    raise MissingPackage(
        "sg.atoms.TorchSimModel needs torch-sim: pip install 'staticgraph[torch-sim]'"
    ) from None


class TorchSimModel(ModelInterface):
    """Energy, forces and stress of torch-sim's states by a runner's model, in the model's units.

    Args:
        runner: its model takes fields of :func:`~staticgraph.atoms.to_data` and returns the energy
            ``[G]`` or ``[G, 1]``, the forces ``[N, 3]`` and, if it has them, stresses
            ``[G, 3, 3]``, in this order or as a dict of these names.
        dtype: of positions and cell.
        stress: whether the model returns stresses.
        max_growth: how often room for edges is made, in all.

    Attributes:
        growths: how often it was made.
    """

    def __init__(
        self,
        runner: StaticGraphRunner,
        dtype: torch.dtype = torch.float64,
        stress: bool = True,
        max_growth: int = 8,
    ) -> None:
        super().__init__()
        self._device, self._dtype = runner.device, dtype
        self._compute_forces, self._compute_stress = True, stress
        # Not a module of this one: torch-sim moves and copies models, and a runner stays.
        self._runner = (runner,)
        self.max_growth = max_growth
        self.growths: int = 0

    def forward(self, state: Any, **_: Any) -> dict[str, Tensor]:
        """Computes all systems of a state.

        Args:
            state: a ``SimState``, or a dict of its tensors.

        Returns:
            ``energy [S]``, ``forces [n, 3]`` and, with ``stress``, ``stress [S, 3, 3]``, on the
            runner's device.

        Raises:
            ArithmeticError: a system's energy or forces are not finite; it is named.
            GraphTooLarge: a system fits no bucket.
        """
        (runner,) = self._runner
        graphs = self._graphs(state)
        while True:
            out = named_outputs(runner.predict(graphs))
            forces, energy = out["forces"], out["energy"].reshape(len(graphs))
            finite = [
                bool(energy[number].isfinite() and each.isfinite().all())
                for number, each in enumerate(forces)
            ]
            if all(finite):
                break
            if self.growths >= self.max_growth or not make_room(runner, graphs):
                raise ArithmeticError(
                    f"system {finite.index(False)} has an energy or a force that is not finite: "
                    "two of its atoms may be at one place"
                )
            self.growths += 1
        results = {"energy": energy, "forces": torch.cat(list(forces))}
        if self._compute_stress:
            results["stress"] = out["stress"]
        return {name: value.to(self._device, self._dtype) for name, value in results.items()}

    def _graphs(self, state: Any) -> list[Data]:
        """The systems of a state as graphs, on the host."""
        values = state if isinstance(state, Mapping) else vars(state) | {"cell": state.cell}
        z, pos, cell, owner = (
            values[name].detach().cpu()
            for name in ("atomic_numbers", "positions", "cell", "system_idx")
        )
        pbc = torch.as_tensor(values.get("pbc", True)).cpu().bool().expand(3)
        (runner,) = self._runner
        counts = owner.bincount(minlength=len(cell)).tolist()
        return [
            with_unknown_fields(
                Data(
                    z=z_of.long(),
                    pos=pos_of.to(self._dtype),
                    cell=columns.mT[None].to(self._dtype),  # torch-sim's vectors are columns
                    pbc=pbc[None],
                    num_nodes=len(z_of),
                ),
                runner.plan.schema,
            )
            for z_of, pos_of, columns in zip(z.split(counts), pos.split(counts), cell, strict=True)
        ]
