"""What ``--json`` prints in every command, checked against ``tests/support/schemas.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from support.command import arguments_of, status_of
from support.command_words import BASES, make_place
from support.schemas import SHAPES, parse, schema_of

from staticgraph import cli
from staticgraph.dryrun.report import BucketRun, Cause, DryRun
from staticgraph.files.document import to_json

DOCS = Path(__file__).parent.parent / "docs"
# For training on nodes, which needs labels.
CORA = str(DOCS.parent / "examples" / "data" / "cora.npz")
# The schema of what each command prints.
PRINTED = {
    "plan data": "plan",
    "plan histogram": "plan",
    "plan limits": "plan-limits",
    "probe": "probe",
    "check": "check",
    "train": "train",
    "try": "try",
    "report": "train",
    "predict": "predict",
    "convert": "convert",
    "partition arrays": "partition",
    "train-large link": "train-large",
    "train-large node": "train-large",
}
MORE = {"plan limits": ["--certify"], "train": ["--epochs", "2"], "bench": ["--eager"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory, esol) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    make_place(folder, esol[:20])
    return folder


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))


def run_folder() -> str:
    """A folder with a training run: the one of another test, or a new one."""
    if Path("trained/report.json").exists():
        return "trained"
    if not Path("run").exists():
        assert status_of([*BASES["train"][:-1], "run"]) == 0
    return "run"


def printed(base: str, capsys) -> dict[str, Any]:
    words = [CORA if word == "graph.npz" else word for word in BASES[base]]
    if base in ("report", "predict"):
        words = [run_folder() if word == "run" else word for word in words]
        capsys.readouterr()
    if base in ("train", "train-large node"):  # not into the folder of another run of this file
        words = [*words[:-1], "trained" if base == "train" else "large-node"]
    assert status_of([*words, *MORE.get(base, []), "--json"]) == 0
    return parse(capsys.readouterr().out)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("base", [*PRINTED, "bench"])
def test_what_is_printed_is_as_the_schema_says(base, capsys):
    values = printed(base, capsys)
    validator = Draft202012Validator(schema_of(PRINTED.get(base, base)))
    validator.validate(values)
    needed = (validator.schema.get("required") or list(values))[0]
    without = {key: value for key, value in values.items() if key != needed}
    for broken in (values | {"unheard of": 1}, without):
        with pytest.raises(ValidationError):
            validator.validate(broken)


def test_a_dry_run_is_as_its_schema_says():
    run = BucketRun(
        "cuda-graph", 0, "(9, 8, 3)", "step", 1, 1, (Cause("why", "x.item()", "m.py:3"),),
        launches={"forward": {"triton": {"fused_0": 2}}}, operators={"forward": {"aten.mm": 1}},
        moments=(("forward", "aten.mm", 12),),
    )  # fmt: skip
    report = DryRun("h100", "NVIDIA H100", "2.13", "Net", True, None, (run,))
    Draft202012Validator(schema_of("check-for")).validate(parse(to_json(report.to_dict())))


def test_every_command_with_json_has_a_schema():
    with_json = {
        name
        for name in cli.COMMANDS
        if any(argument.name == "--json" for argument in arguments_of(name))
    }
    assert with_json == {BASES[base][0] for base in [*PRINTED, "bench"]}
    assert set(SHAPES) == {*PRINTED.values(), "bench", "check-for"}
