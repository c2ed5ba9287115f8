"""After a kill at any moment, files and folders are the old or the new, complete; nothing that
belongs to others is removed."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from support.saved_kinds import Graph, Store, store_of

from staticgraph.files import atomic, document, folder, scratch
from staticgraph.files.atomic import is_there
from staticgraph.outofcore import partition
from staticgraph.store.graph_store import GraphStore


def test_a_folder_that_was_moved_aside_is_put_back_and_said(tmp_path):
    store_of(1.5).save(tmp_path / "s")
    old = scratch.beside(tmp_path / "s", "old")
    (tmp_path / "s").rename(old.with_name(old.name.replace(scratch.TOKEN, "00000000")))
    with pytest.warns(UserWarning, match="being replaced when its process ended.*was put back"):
        assert GraphStore.load(tmp_path / "s").name == "1.5"


def test_of_two_writers_of_one_folder_one_is_refused(tmp_path, monkeypatch):
    store_of(1.5).save(tmp_path / "s")
    rename = os.rename

    def rename_late(source, target):
        """Another process puts its store there between the two moves."""
        if Path(target) == tmp_path / "s":
            monkeypatch.setattr(os, "rename", rename)
            store_of(2.5).save(tmp_path / "s", overwrite=True)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_late)
    monkeypatch.setattr(folder, "PATIENCE_S", 0.0)
    # The other process finds what was moved aside and puts it back, as after a kill.
    with (
        pytest.warns(UserWarning, match="was put back"),
        pytest.raises(FileExistsError, match="written by another process meanwhile, which is kept"),
    ):
        store_of(3.5).save(tmp_path / "s", overwrite=True)
    assert GraphStore.load(tmp_path / "s").name == "2.5"
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


# ---------------------------------------------------------------------- whose it is


@pytest.mark.parametrize("kind", [Store, Graph])
@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_of_others_is_replaced(kind, overwrite, tmp_path):
    def write(place: Path) -> None:
        if kind is Store:
            store_of(1.5).save(place, overwrite=overwrite)
        else:
            partition(np.zeros((2, 3), int), 4, 2, place, overwrite=overwrite)

    Store.write(tmp_path / "own-store", 1)
    Graph.write(tmp_path / "own-graph", 1)
    other = tmp_path / ("own-graph" if kind is Store else "own-store")
    own = tmp_path / ("own-store" if kind is Store else "own-graph")
    browser = tmp_path / "extension"
    browser.mkdir()
    (browser / "manifest.json").write_text('{"manifest_version": 3}')
    (browser / "thesis.txt").write_text("all my work")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    (tmp_path / "file").write_text("mine")
    cases = [
        (other, "its manifest.json says 'staticgraph"),
        (browser, "its manifest.json says None"),
        (broken, "its manifest.json says None"),
        (tmp_path / "file", "exists and is not a"),
    ]
    before = sorted(path for path in tmp_path.rglob("*"))
    for place, message in cases:
        with pytest.raises(FileExistsError, match=message):
            write(place)
    (own / "notes.txt").write_text("mine, too")
    (own / "more").mkdir()
    with pytest.raises(FileExistsError, match=r"'more', 'notes.txt' in it is not part of it"):
        write(own)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, own / "notes.txt", own / "more"])
    assert (browser / "thesis.txt").read_text() == "all my work"
    (own / "notes.txt").unlink()
    (own / "more").rmdir()
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    if overwrite:
        write(own)
        return
    with pytest.raises(FileExistsError, match="already: replace it with overwrite=True"):
        write(own)


def test_a_damaged_store_can_be_replaced(tmp_path):
    store_of(1.5).save(tmp_path / "s")
    (tmp_path / "s" / "edge_src.npy").write_bytes(b"damaged")
    (tmp_path / "s" / "row_ptr.npy").unlink()
    store_of(2.5).save(tmp_path / "s", overwrite=True)
    assert GraphStore.load(tmp_path / "s").name == "2.5"


def test_a_link_is_followed_and_stays(tmp_path):
    store_of(1.5).save(tmp_path / "s")
    (tmp_path / "link").symlink_to("s")
    store_of(2.5).save(tmp_path / "link", overwrite=True)
    atomic.write_text(tmp_path / "file", "1")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "file-link").symlink_to("file")
    atomic.write_text(tmp_path / "file-link", "2")
    assert GraphStore.load(tmp_path / "s").name == "2.5"
    assert (tmp_path / "file").read_text() == "2"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file-link").is_symlink()


def test_what_is_no_file_is_written_to(tmp_path):
    atomic.write_text("/dev/null", "gone")
    assert not Path("/dev/null").is_file()


def test_scratch_of_the_living_is_left_alone(tmp_path, monkeypatch):
    target = tmp_path / "f"
    own = scratch.beside(target, "part")
    parents = own.with_name(own.name.replace(f"-{os.getpid()}-", f"-{os.getppid()}-"))
    machines = own.with_name(own.name.replace(scratch.MACHINE, "ffffffff"))
    for path in (own, parents, machines):
        path.write_text("being written")
    atomic.write_text(target, "1")
    assert {path.name for path in tmp_path.iterdir()} == {
        "f", own.name, parents.name, machines.name,
    }  # fmt: skip
    os.utime(machines, (0, 0))
    monkeypatch.setattr(scratch, "TOKEN", "00000000")  # a later process with the same number
    atomic.write_text(target, "2")
    assert {path.name for path in tmp_path.iterdir()} == {"f", parents.name}


def test_a_missing_folder_is_named_after_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere/plan\.json'$"):
        atomic.write_text(tmp_path / "nowhere" / "plan.json", "1")


@pytest.mark.parametrize("name", ["n" * 300, "a\0b", "loop"])
def test_a_name_that_no_file_can_have_is_not_taken_for_a_missing_one(name, tmp_path):
    """pathlib's own check does so, from Python 3.14 on for each of these names."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((OSError, ValueError)) as found:
        is_there(tmp_path / name)
    assert not isinstance(found.value, FileNotFoundError)
    assert not is_there(tmp_path / "missing")
    assert not is_there(Path(__file__) / "below")
    assert is_there(tmp_path)


def test_a_name_that_is_too_long_is_said_before_the_work(tmp_path):
    with (
        pytest.raises(OSError, match=r"too long: '[^~]*n'$"),
        atomic.writing(tmp_path / ("n" * 300)),
    ):
        pytest.fail("there was work to do")


def test_a_write_that_fails_names_its_file_and_leaves_the_old_one(tmp_path):
    path = tmp_path / "r.json"
    atomic.write_text(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*r\.json'"):
            atomic.write_bytes(path, bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_long_names_have_scratch(tmp_path):
    path = tmp_path / ("n" * 250)
    atomic.write_text(path, "1")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


# ---------------------------------------------------------------------- documents


def test_a_document_may_be_laid_out_anew_but_not_changed(tmp_path):
    path = tmp_path / "d.json"
    document.save(path, {"nodes": 12, "edges": [1.5, None]})
    path.write_text(path.read_text().replace("\n", "\n\n  "))
    assert document.load(path) == {"nodes": 12, "edges": [1.5, None]}
    path.write_text(path.read_text().replace("12", "13"))
    with pytest.raises(ValueError, match="it was changed; make it again, or delete its 'checksum'"):
        document.load(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r".+"):
        document.load(path)
