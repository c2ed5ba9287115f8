"""A molecule, drawn."""

from __future__ import annotations

from staticgraph.errors import BadGraph, MissingPackage

WIDTH, HEIGHT = 420, 300


def svg(smiles: str) -> str:
    """The drawing of a SMILES, as SVG.

    Raises:
        MissingPackage: RDKit is not installed, or lacks a library of the system.
        BadGraph: RDKit cannot read it.
    """
    try:
        from rdkit import Chem  # pyright: ignore[reportMissingImports]
        from rdkit.Chem.Draw import rdMolDraw2D  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackage(
            f"drawing needs the package 'rdkit', which cannot be imported ({error}): "
            "pip install 'staticgraph[smiles]', and the libraries that it draws with"
        ) from error
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise BadGraph(f"RDKit cannot read the SMILES {smiles!r}")
    canvas = rdMolDraw2D.MolDraw2DSVG(WIDTH, HEIGHT)
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return canvas.GetDrawingText()
