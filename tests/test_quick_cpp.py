"""The tests' compiler is g++ with less optimization; the caller's environment takes precedence."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from support import quick_cpp


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_compiler_is_gpp_with_less_optimization():
    words = [str(quick_cpp.COMPILER), "-###", "-x", "c++", "-O3", "-DA=b c", "-c", "/dev/null"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    assert '"-O1"' in said or " -O1 " in said
    assert "-O3" not in said
    assert "A=b c" in said, "other words are passed as they are"


def test_what_the_caller_says_stays():
    given = {
        "CXX": "mine",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O3",
        "AOT_INDUCTOR_ENABLE_LINE_TABLES": "1",
    }
    quick_cpp.begin(environ := dict(given))
    assert environ == given
