"""What ``docs/errors.md`` quotes from a message is in the source, and its types are errors."""

from __future__ import annotations

import builtins
import re

import pytest
from support.message_templates import is_written
from support.pages import ROOT

from staticgraph import errors

ROWS = [
    line.split(" | ")[0]
    for line in (ROOT / "docs" / "errors.md").read_text().splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize("row", ROWS)
def test_what_is_quoted_is_in_a_message(row):
    for quoted in re.findall(r'"([^"]+)"', row):
        assert is_written(quoted) or is_written(quoted.replace("`", "")), quoted


@pytest.mark.parametrize("row", ROWS)
def test_what_is_named_is_an_error_or_a_warning(row):
    outside = re.sub(r'"[^"]*"|\([^)]*\)', "", row)
    for name in re.findall(r"`([A-Z]\w+)`", outside):
        kind = getattr(errors, name, getattr(builtins, name, None))
        assert isinstance(kind, type), name
        assert issubclass(kind, BaseException), name
