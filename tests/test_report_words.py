"""Reports for people: every word has a meaning, no digits without information, no empty columns."""

from __future__ import annotations

from dataclasses import replace

from staticgraph.memory.memory_model import _sum
from staticgraph.runner.report import BucketReport, Report

BUCKET = BucketReport(0, 9, 20, 3, 4, 1, 12, 0.5, 0.25, None, 1, 0, 0, 0, 0.0, 1.5, None)
REPORT = Report("Net", "cpu (1 thread)", "eager", "as asked", None, (BUCKET,), (), {})


def test_a_runners_table_leaves_out_what_did_not_happen():
    assert "recordings" not in str(REPORT)
    assert "graph breaks" not in str(REPORT)
    happened = replace(BUCKET, recordings=1, graph_breaks=2)
    assert "graph breaks  recordings" in str(replace(REPORT, buckets=(BUCKET, happened)))
    assert "50.0%" in str(REPORT)


def test_a_model_of_memory_has_no_terms_of_nothing_and_no_tenths_of_bytes():
    terms = ("fixed", "nodes", "edges", "graphs", "places")
    assert _sum(terms, (8192.0, 5376.0, 0.5, 0.0, 0.0)) == "8,192 fixed + 5,376 nodes + 0.5 edges"
    assert _sum(terms, (0.0,) * 5) == "0"
