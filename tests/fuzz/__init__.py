"""A fuzzer: random data through random code paths, checked by independent oracles.

    python -m tests.fuzz --seconds 60 --seed 7        every subject in turn
    python -m tests.fuzz --subject files --seconds 3600
    python -m tests.fuzz --replay files:123456        one round again

A subject is a Hypothesis strategy and a check. Each round of a few dozen cases runs in its own
child process, so that a segmentation fault or an endless loop is a finding like any other. The
cases of a round depend on its seed alone; the number of rounds depends on the time.
"""
