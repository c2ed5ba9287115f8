"""Conversion of a fit to plain values and back, for the file of a memory model."""

from __future__ import annotations

from typing import Any

from staticgraph.memory.counts import LAYOUTS, Form, terms_of
from staticgraph.memory.fit import Fit
from staticgraph.memory.regime import Regime

# A term that files of earlier versions lack; it is zero there.
LATER = "block"


def values_of(fit: Fit) -> dict[str, Any]:
    """A fit as plain values, for JSON."""
    return {
        "form": fit.form,
        "layout": fit.layout,
        **({"counted": True} if fit.counted else {}),
        "terms": list(fit.terms),
        **({"axes": list(fit.axes), "typed": fit.typed} if fit.axes else {}),
        "planes": [list(plane) for plane in fit.planes],
        "residual": fit.residual,
        "held_out": fit.held_out,
        "fit_note": fit.note,
        **({"pieces": [_piece(*piece) for piece in fit.pieces]} if fit.pieces else {}),
    }


def _piece(regime: Regime, fit: Fit) -> dict[str, Any]:
    return {"where": regime._asdict(), **values_of(fit)}


def fit_of(values: dict[str, Any]) -> Fit:
    """Rebuilds a fit from the output of :func:`values_of`.

    Raises:
        KeyError: a value is missing.
        TypeError: a value has the wrong type.
        ValueError: terms or a layout that the form does not have.
    """
    form: Form = values["form"]
    axes, typed = tuple(values.get("axes", ())), values.get("typed", False)
    terms = terms_of(form, axes, typed)
    given = tuple(values["terms"])
    if given not in (terms, tuple(term for term in terms if term != LATER)):
        raise ValueError(f"{form} has the terms {values['terms']}, not {terms}")
    named = [dict(zip(given, plane, strict=True)) for plane in values["planes"]]
    planes = tuple(tuple(plane.get(term, 0.0) for term in terms) for plane in named)
    if values["layout"] not in LAYOUTS:
        raise ValueError(f"layout {values['layout']!r} is none of {', '.join(LAYOUTS)}")
    return Fit(
        form,
        planes,
        values["residual"],
        values["held_out"],
        values["fit_note"],
        values["layout"],
        axes,
        typed,
        values.get("counted", False),
        tuple((Regime(**piece["where"]), fit_of(piece)) for piece in values.get("pieces", ())),
    )
