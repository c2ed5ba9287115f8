"""A molecule, drawn."""

from __future__ import annotations

from staticgraph.errors import BadGraph, MissingPackage

WIDTH, HEIGHT = 420, 300


def svg(smiles: str) -> str:
    """The drawing of a SMILES, as SVG.

    Raises:
        MissingPackage: RDKit is not installed.
        BadGraph: RDKit cannot read it.
    """
    try:
        from rdkit import Chem  # pyright: ignore[reportMissingImports]
        from rdkit.Chem.Draw import rdMolDraw2D  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackage(
            "drawing needs the package 'rdkit', which is not installed: "
            "pip install 'staticgraph[smiles]'"
        ) from error
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise BadGraph(f"RDKit cannot read the SMILES {smiles!r}")
    canvas = rdMolDraw2D.MolDraw2DSVG(WIDTH, HEIGHT)
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return canvas.GetDrawingText()
