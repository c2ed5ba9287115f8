"""A number and its noun agree in every message of the package."""

import ast
from pathlib import Path

import numpy as np
import pytest

import staticgraph
from staticgraph.text.how_many import how_many, how_many_of

PACKAGE = Path(staticgraph.__file__).parent
# Nouns that are counted. A hard-coded plural of these after a number in an f-string is wrong for
# the number 1.
NOUNS = {
    *("graphs", "nodes", "edges", "rows", "batches", "buckets", "steps", "epochs", "threads"),
    *("workers", "processes", "ranks", "kernels", "columns", "points", "partitions", "shards"),
    *("heads", "packs", "requests", "layers", "parameters", "devices", "states", "places"),
}
# Values that are never 1 or are not numbers: the file, and the expression before the noun.
PLAIN = {
    ("steps/state/recordable_optimizer.py", "kind"),
    ("batches/slots/real_counts.py", "len(ids)"),  # too many
    ("nn/context/batch_context.py", "size"),  # a single row belongs to no level
    ("outofcore/disk/manifest.py", "n"),  # of two partitions
    ("outofcore/policies/policy.py", "self.near"),  # below 0
    ("outofcore/policies/policy.py", "num_partitions"),  # more than the buffer
    ("rewrites/layers/linear_statistics.py", "rows"),  # more than a million
    ("training/plots.py", "width"),  # more than one
    ("steps/computation/computation.py", "level"),
    ("steps/computation/computation.py", "name"),
}


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "batch", "1 batch"),
        (0, "graph", "0 graphs"),
        (1128, "graph", "1,128 graphs"),
        (2, "batch", "2 batches"),
        (3, "entry", "3 entries"),
        (2, "training node", "2 training nodes"),
        (np.int64(1), "process", "1 process"),
        (2, "process", "2 processes"),
    ],
)
def test_a_number_with_its_noun(count, noun, said):
    assert how_many(count, noun) == said


def test_a_component_is_named_in_the_plural_and_one_of_it_is_not():
    assert how_many_of(1, "nodes") == "1 node"
    assert how_many_of(20, "edges") == "20 edges"
    assert how_many_of(2, "atom") == "2 atom"


def _rounded(value: ast.FormattedValue) -> bool:
    """Whether the value is a mean, such as {mean:.0f}, which takes a plural even if it prints 1."""
    return value.format_spec is not None and "." in ast.unparse(value.format_spec)


def _plurals_behind_numbers(path: Path):
    """(expression, noun, line) of f-strings with a hard-coded plural after a value."""
    for string in ast.walk(ast.parse(path.read_text())):
        if isinstance(string, ast.JoinedStr):
            for value, after in zip(string.values, string.values[1:], strict=False):
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                    assert isinstance(after.value, str)
                    words = after.value[1:].split()
                    first = words[0].strip(".,;:()") if words else ""
                    if after.value[:1] == " " and first in NOUNS and not _rounded(value):
                        yield ast.unparse(value.value), first, value.lineno


def test_no_sentence_of_the_package_writes_a_plural_behind_a_number():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {{{what}}} {noun}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for what, noun, line in _plurals_behind_numbers(path)
        if (path.relative_to(PACKAGE).as_posix(), what) not in PLAIN
    ]
    assert not wrong, "say how_many(number, noun):\n" + "\n".join(wrong)


def test_the_search_finds_what_it_is_for(tmp_path):
    path = tmp_path / "told.py"
    path.write_text('f"{n} graphs; {n:,} batches"; f"{n:.1f} nodes"; f"{how_many(n, 1)} more"')
    assert [found[:2] for found in _plurals_behind_numbers(path)] == [
        ("n", "graphs"),
        ("n", "batches"),
    ]
