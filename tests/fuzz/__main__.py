"""``python -m tests.fuzz``: rounds of all subjects for some seconds, and what they found."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # for the helpers of the tests

import torch

from .rounds import Round, run_for, run_round
from .subjects import SUBJECTS, warm_up


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all subjects together")
    parser.add_argument("--seed", type=int, help="another one every time where left out")
    parser.add_argument("--subject", action="append", choices=sorted(SUBJECTS))
    parser.add_argument("--replay", metavar="SUBJECT:SEED", help="one round again")
    parser.add_argument("--log", type=Path, help="findings are also written here, as they come")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.replay:
        name, _, seed = args.replay.partition(":")
        result = run_round(SUBJECTS[name], int(seed))
        print(result.finding or f"{result.cases} cases, nothing found")
        return int(bool(result.finding))
    seed = args.seed if args.seed is not None else time.time_ns() % 2**32
    names = args.subject or list(SUBJECTS)
    print(f"fuzzing {', '.join(names)} for {args.seconds:g} s with --seed {seed}", flush=True)
    warm_up()
    left = args.seconds - _running_s()
    cases: Counter[str] = Counter()

    def told(result: Round, first: bool) -> None:
        cases[result.subject] += result.cases
        if result.finding and first:
            text = f"\n--replay {result.subject}:{result.seed}\n{result.finding}"
            print(text, flush=True)
            if args.log:
                with args.log.open("a") as log:
                    log.write(text)

    found = run_for([SUBJECTS[name] for name in names], left, seed, told)
    counted = ", ".join(f"{name} {number:,}" for name, number in cases.items())
    took = f"{_running_s():.0f} s"
    print(f"{took}; cases: {counted}; findings: {len(found)}; --seed {seed}")
    for result in found:
        print(f"  --replay {result.subject}:{result.seed}  {result.what[:120]}")
    return int(bool(found))


def _running_s() -> float:
    """Seconds since this process started, including its imports, which take seconds."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - started / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main())
