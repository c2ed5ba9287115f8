"""``python -m tests.fuzz.coverage_guided SUBJECT [libFuzzer options]``: the same subjects, with
cases drawn from bytes that Atheris mutates to reach branches not covered yet.

Atheris is not a dependency of the project; without it, the command says so and exits.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

# Modules with instrumented functions: those that read files. Numba rejects instrumented loops.
INSTRUMENTED = (
    "staticgraph.files.document",
    "staticgraph.schema",
    "staticgraph.store.files",
    "staticgraph.store.structure",
    "staticgraph.outofcore.disk.manifest",
    "staticgraph.training.checkpoint",
)


def main(argv: list[str]) -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris (Python 3.11 or 3.12, Linux)")
        return 2
    from .subjects import SUBJECTS

    for module in map(importlib.import_module, INSTRUMENTED):
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                setattr(module, name, atheris.instrument_func(value))
    if len(argv) < 2 or argv[1] not in SUBJECTS:
        print(f"name one of {', '.join(SUBJECTS)}")
        return 2
    import hypothesis

    subject = SUBJECTS[argv[1]]

    @hypothesis.settings(deadline=None, database=None)
    @hypothesis.given(subject.cases())
    def one(case: object) -> None:
        subject.check(case)

    atheris.Setup([argv[0], *argv[2:]], one.hypothesis.fuzz_one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
