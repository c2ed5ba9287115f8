"""A fuzzer: random data through random code paths, checked by independent oracles.

A subject is a Hypothesis strategy and a check. ``tests/test_fuzz.py`` runs some cases of each, the
same every time, and ``make fuzz`` others.
"""
