"""Which public names count as typed: all except classes whose PyG bases are untyped."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
_spec = importlib.util.spec_from_file_location("public_types", ROOT / "tools" / "public_types.py")
assert _spec is not None
assert _spec.loader is not None
public_types = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(public_types)

OF_BASES = "Type of base class unknown"


def symbol(
    name: str, *errors: str, exported: bool = True, ambiguous: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "isExported": exported,
        "isTypeKnown": not errors or ambiguous,
        "isTypeAmbiguous": ambiguous,
        "diagnostics": [{"severity": "error", "message": each} for each in errors],
    }


@pytest.mark.parametrize(
    ("name", "extends"),
    [
        ("staticgraph.nn.conv.gps.StaticGPSConv", True),
        ("staticgraph.store.pyg.assembled.RuledData", True),
        ("staticgraph.nn.norm.batch_norm.MaskedBatchNorm1d", False),  # torch's base is typed
        ("staticgraph.runner.runner.StaticGraphRunner", False),
        ("staticgraph.runner.runner.Nothing", False),
        ("staticgraph.no_module.Nothing", False),
    ],
)
def test_a_class_extends_one_of_pyg(name, extends):
    assert public_types.extends_untyped(name, ROOT) is extends


def test_only_the_bases_of_such_a_class_are_excused():
    gps, runner = (
        "staticgraph.nn.conv.gps.StaticGPSConv",
        "staticgraph.runner.runner.StaticGraphRunner",
    )
    symbols = [
        symbol(gps, "Type of metaclass unknown", OF_BASES),
        symbol(f"{gps}.forward", "Return type is unknown"),
        symbol(runner, OF_BASES),
        symbol(f"{runner}.device", "Type is missing type annotation", ambiguous=True),
        symbol(f"{runner}.plan"),
        symbol("torch.nn.Module", OF_BASES, exported=False),
    ]
    lacking, left_out = public_types.without_types({"typeCompleteness": {"symbols": symbols}}, ROOT)
    assert left_out == [gps]
    assert [each.partition(":")[0] for each in lacking] == [
        f"{gps}.forward",
        runner,
        f"{runner}.device",
    ]
    spoilt = [symbol(gps, OF_BASES, "Type of parameter is unknown")]
    assert len(public_types.without_types({"typeCompleteness": {"symbols": spoilt}}, ROOT)[0]) == 1


def test_lint_fails_where_a_name_lacks_a_type():
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert "tools/public_types.py" in lint
