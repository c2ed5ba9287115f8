"""Writes what a program computes as one would on paper."""

from __future__ import annotations

from collections.abc import Sequence

from staticgraph.kernels.neighbours.program import Program, Result, Value

# Characters, beyond which a part of an expression is left out.
MOST = 110
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "=="}
_LOOSE = ("add", "sub", "lt", "le", "eq")
_MOVES = ("view", "expand", "permute", "slice")
_NAMES = {"loop": "is_loop", "total": "sum", "share": "1 / degree"}
_ENDS = {"source": "[source]", "target": "[target]", "table": "[code]"}
_REDUCTIONS = {"rows": "", "source_sum": "sum by source of "}


def formula(program: Program, result: Result, names: Sequence[str]) -> str:
    """Returns one result of a program, such as ``mean of tanh(h[source] + bonds)``.

    Args:
        program: which computes it.
        result: one of its results.
        names: of its operands.
    """
    texts = _texts(program, names, own_term=False)
    if result.reduction == "softmax":
        text = f"sum of {texts[result.value]}, weighed by softmax of {texts[result.weight]}"
    else:
        text = _REDUCTIONS.get(result.reduction, f"{result.reduction} of ") + texts[result.value]
    if result.start >= 0:
        text += f", and {_texts(program, names, own_term=True)[result.start]}"
    return text


def _texts(program: Program, names: Sequence[str], own_term: bool) -> list[str]:
    """Every value, of edges or of a node's own term."""
    texts: list[str] = []
    for value in program.values:
        operation, arguments, options = value.operation, value.arguments, value.options
        parts = [texts[argument] for argument in arguments]
        if operation == "operand":
            end = _ENDS.get(program.operands[options[0]].place, "")
            name = str(names[options[0]])
            text = name if own_term else name + end
        elif operation == "number":
            text = f"{options[0]:g}"
        elif (ramp := _ramp(program, value)) is not None:
            text = f"{ramp}({parts[2 if ramp == 'relu' else 1]})"
        elif operation in _INFIX:
            closed = [_closed(program, argument, texts[argument]) for argument in arguments]
            text = f" {_INFIX[operation]} ".join(parts if operation == "add" else closed)
        elif operation in _MOVES:
            text = parts[0]
        else:
            inner = f"({', '.join(parts)})" if parts else ""
            text = _NAMES.get(operation, operation) + inner
        texts.append(text if len(text) <= MOST else "...")
    return texts


def _ramp(program: Program, value: Value) -> str | None:
    """The name of a ramp, which is zero or less steep below zero; None for other values."""
    if value.operation != "where":
        return None
    test, first, second = value.arguments
    compare, arguments, *_ = program.values[test]
    if compare == "le" and arguments[0] == second and program.values[first].options == (0.0,):
        return "relu"
    return "leaky_relu" if compare == "lt" and arguments[1] == first else None


def _closed(program: Program, place: int, text: str) -> str:
    """An operand of an infix operation, in brackets where it binds less."""
    while program.values[place].operation in _MOVES:
        (place,) = program.values[place].arguments
    return f"({text})" if program.values[place].operation in _LOOSE and text != "..." else text
