"""A fuzzer: random data, random ways, and oracles that know nothing of how either was made.

    python -m tests.fuzz --seconds 60 --seed 7        every subject in turn
    python -m tests.fuzz --subject files --seconds 3600
    python -m tests.fuzz --replay files:123456        one round again

A subject is a strategy of Hypothesis and a check. Rounds of a few dozen cases run in a child
process each, so that a segmentation fault or an endless loop is a finding like any other. Which
cases a round has follows from its seed alone; how many rounds there are follows from the time.
"""
