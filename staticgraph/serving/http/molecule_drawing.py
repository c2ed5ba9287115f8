"""Drawings of molecules."""

from __future__ import annotations

from staticgraph.errors import BadGraph, MissingPackage
from staticgraph.text.how_many import how_many

WIDTH, HEIGHT = 420, 300
# RDKit's time grows at least with the square of the number of atoms, and it holds the GIL: a chain
# of 200 takes 0.03 s, 33 rings of 6 take 0.17 s, a chain of 1,000 1.8 s, and one of 4,000 did not
# finish in 40 s (one core of a 2-core CPU, 2026-11-23). The largest of ogbg-molhiv has 222.
MOST_ATOMS = 250


def svg(smiles: str) -> str:
    """Draws a SMILES as SVG.

    Raises:
        MissingPackage: RDKit is not installed, or lacks a system library.
        BadGraph: RDKit cannot read the SMILES, or it has more than ``MOST_ATOMS`` atoms.
    """
    try:
        from rdkit import Chem  # pyright: ignore[reportMissingImports]
        from rdkit.Chem.Draw import rdMolDraw2D  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackage(
            f"drawing needs the package 'rdkit', which cannot be imported ({error}): "
            "pip install rdkit, and the libraries that it draws with"
        ) from error
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise BadGraph(f"RDKit cannot read the SMILES {smiles!r}")
    if (atoms := molecule.GetNumAtoms()) > MOST_ATOMS:
        size = how_many(atoms, "atom")
        raise BadGraph(f"a molecule of {size} is not drawn; at most {MOST_ATOMS} atoms are")
    canvas = rdMolDraw2D.MolDraw2DSVG(WIDTH, HEIGHT)
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return canvas.GetDrawingText()
