"""An ASE calculator whose model runs in fixed shapes: energies, forces and stress.

ASE's own loops (dynamics, relaxation, bands of images) call a calculator once per step, with the
same atoms at other positions: always the same bucket, and the same recording. When more edges come
within the cutoff than there is room for, room is made and the step is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from staticgraph.atoms.stream import make_room
from staticgraph.atoms.structures import PROPERTIES, named_outputs, to_data, with_unknown_fields
from staticgraph.errors import MissingPackage
from staticgraph.runner.runner import StaticGraphRunner

try:
    from ase.calculators.calculator import Calculator as _Calculator
    from ase.calculators.calculator import all_changes
except ImportError:
    raise MissingPackage(
        "sg.atoms.Calculator needs ASE: pip install 'staticgraph[atoms]'"
    ) from None


class Calculator(_Calculator):
    """Energy, forces and stress of ``ase.Atoms`` by a runner's model, in the model's units.

    Args:
        runner: its model takes fields of :func:`~staticgraph.atoms.to_data` and returns the energy
            ``[G]`` or ``[G, 1]``, the forces ``[N, 3]`` and, if it has them, stresses
            ``[G, 3, 3]``, in this order or as a dict of these names.
        dtype: of positions and cell.
        max_growth: how often room for edges is made, in all.

    Attributes:
        growths: how often it was made.
    """

    def __init__(
        self,
        runner: StaticGraphRunner,
        dtype: torch.dtype = torch.float32,
        max_growth: int = 8,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.runner = runner
        self.dtype = dtype
        self.max_growth = max_growth
        self.growths: int = 0
        self.implemented_properties: list[str] = list(PROPERTIES)

    def calculate(
        self,
        atoms: Any = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Computes every property that the model returns; called by ASE."""
        super().calculate(atoms, list(properties), list(system_changes))
        self.results: dict[str, Any] = self.many([self.atoms])[0]

    def many(self, structures: Sequence[Any]) -> list[dict[str, Any]]:
        """Computes several structures at once, as many per batch as fit.

        Returns:
            One dict per structure: ``energy`` a float, ``forces [n, 3]``, ``stress [6]`` in Voigt's
            order.

        Raises:
            ArithmeticError: a structure's energy or forces are not finite; it is named.
            GraphTooLarge: a structure fits no bucket.
        """
        graphs = [self._graph(structure) for structure in structures]
        while True:
            results = self._results(self.runner.predict(graphs), structures)
            failed = [number for number, each in enumerate(results) if not _is_finite(each)]
            if not failed:
                return results
            if self.growths >= self.max_growth or not make_room(self.runner, graphs):
                number = failed[0]
                raise ArithmeticError(
                    f"structure {number} ({structures[number].get_chemical_formula()}) has an "
                    "energy or a force that is not finite: two of its atoms may be at one place"
                )
            self.growths += 1

    def _graph(self, structure: Any) -> Any:
        """A structure with all fields of the runner's data: targets are not known."""
        return with_unknown_fields(to_data(structure, self.dtype), self.runner.plan.schema)

    @staticmethod
    def _results(out: Any, structures: Sequence[Any]) -> list[dict[str, Any]]:
        named = named_outputs(out)
        results = []
        for number in range(len(structures)):
            each: dict[str, Any] = {"energy": float(named["energy"][number].reshape(()))}
            each["free_energy"] = each["energy"]
            if "forces" in named:
                each["forces"] = named["forces"][number].double().numpy()
            if "stress" in named:
                matrix = named["stress"][number].double().numpy().reshape(3, 3)
                each["stress"] = matrix.flat[[0, 4, 8, 5, 2, 1]]
            results.append(each)
        return results


def _is_finite(result: dict[str, Any]) -> bool:
    return all(bool(np.isfinite(value).all()) for value in result.values())
