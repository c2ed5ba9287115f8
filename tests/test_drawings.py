"""The drawings in the documents are what their script makes from the repository's data."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.tools.draw import DRAWINGS, FOLDER, alike
from docs.tools.house import ROWS, arrows


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_as_the_script_makes_it(name):
    made = DRAWINGS[name]().written()
    assert alike((FOLDER / f"{name}.svg").read_text(), made), "python -m docs.tools.draw"


def test_there_is_no_other_drawing():
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(DRAWINGS)


def test_a_change_of_a_word_or_of_a_place_is_seen():
    text = (FOLDER / "sizes.svg").read_text()
    assert alike(text, text)
    assert not alike(text, text.replace("molecules of ESOL", "molecules"))
    moved = re.sub(r'cx="([\d.]+)"', lambda m: f'cx="{float(m[1]) + 2:g}"', text, count=1)
    assert not alike(text, moved)


@pytest.mark.parametrize("name", DRAWINGS)
def test_words_stay_within_the_drawing(name):
    """By the mean width of a letter, no text is cut off at an edge."""
    text = (FOLDER / f"{name}.svg").read_text()
    (width, height) = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', text).groups())
    place = r'<text x="([\d.]+)" y="([\d.]+)" font-size="(\d+)"'
    shape = re.compile(place + r' fill="[^"]+" text-anchor="(\w+)"[^>]*>([^<]*)<')
    found = shape.findall(text)
    assert found
    for x, y, size, anchor, words in found:
        wide = 0.48 * float(size) * len(words)
        left = float(x) - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        assert left >= 0, words
        assert left + wide <= width, words
        assert float(size) <= float(y) <= height - 4, words


def test_the_house_has_the_rooms_that_there_are_and_lines_that_are_imports():
    """Lines go upwards and each is an import; rooms that every room may use are left out."""
    package = Path(__file__).parents[1] / "staticgraph"
    row = {name: number for number, rooms in enumerate(ROWS) for name, _ in rooms}
    there = {path.parent.name for path in package.glob("*/__init__.py")} | {"schema"}
    assert set(row) == there - {"text", "files", "internals", "models", "lightning"}
    for used, user in arrows():
        assert row[used] < row[user]
        files = (package / user).rglob("*.py")
        assert any(re.search(rf"staticgraph\.{used}\b", file.read_text()) for file in files), (
            f"nothing in {user} imports {used}"
        )
