"""What the page of runs from scratch says about commits, machines and runs side by side, on which times depend."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from test_report_scratch_page import Facts, page_of, result, write_runs

from recurrify_papers.report import scratch_blocks as blocks

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
NOT_COMPARED = "Times, speeds and the curves against time do not compare between rows that differ in any of this."


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "svg", lambda *_: "<svg></svg>")


def made(arch: str, start: float, stop: float, seed: int = 0, commit: str = "a" * 40, **machine: Any) -> Facts:
    """A run from one minute to another."""
    run = result(arch, seed)
    run["provenance"] |= {
        "git": {"commit": commit, "dirty": False},
        "machine": {"gpu": "Example GPU", "cpu": "Example CPU", "cores": 4} | machine,
        "date_utc": (BEGINNING + timedelta(minutes=stop)).isoformat(timespec="seconds"),
        "wall_seconds": 60.0 * (stop - start),
    }
    return run


def told(folder: Path, **runs: Facts) -> str:
    return page_of(write_runs(folder / "runs", runs), folder / "out").words


def test_one_after_another_by_the_same_code(tmp_path: Path) -> None:
    # The second began half a second before the first was written, as whole seconds have it.
    words = told(tmp_path, one=made("xl", 0, 10), two=made("rsa-xl", 9.99, 20))
    assert (
        "All rows were made at commit aaaaaaa. Speed and memory on Example GPU. As far as these results tell, one run "
        "went on at a time."
    ) in words
    assert NOT_COMPARED not in words
    assert "Not all lines compare" not in words


def test_other_commits(tmp_path: Path) -> None:
    runs = {"one": made("xl", 0, 1), "two": made("rsa-xl", 1, 2), "three": made("brt", 2, 3, commit="b" * 7)}
    words = told(tmp_path, **runs)
    assert (
        "The rows were made at different commits: aaaaaaa (Transformer-XL; RSA-XL), bbbbbbb (Block-Recurrent)." in words
    )
    assert NOT_COMPARED in words
    # In the captions of both plots against time, and in no other.
    assert words.count("Not all lines compare: see the notes below the table.") == 2


def test_changes_that_were_not_committed(tmp_path: Path) -> None:
    dirty = made("rsa-xl", 1, 2)
    dirty["provenance"]["git"]["dirty"] = True
    words = told(tmp_path, one=made("xl", 0, 1), two=dirty)
    assert "aaaaaaa (Transformer-XL), aaaaaaa with uncommitted changes (RSA-XL)." in words


def test_seeds_of_one_row_on_different_machines(tmp_path: Path) -> None:
    """Without a GPU it is the CPU, and how many of its cores there are."""
    runs = {"xl0": made("xl", 0, 9), "xl1": made("xl", 0, 9, seed=1, gpu=None), "rsa": made("rsa-xl", 0, 9, gpu=None)}
    words = told(tmp_path, **runs)
    assert (
        "The rows were made on different machines: Example GPU (Transformer-XL with seed 0), Example CPU (4 cores) "
        "(Transformer-XL with seed 1; RSA-XL)."
    ) in words
    assert "with no other (Transformer-XL with seed 0), with 1 other (Transformer-XL with seed 1; RSA-XL)." in words
    assert NOT_COMPARED in words


def test_side_by_side(tmp_path: Path) -> None:
    runs = {"one": made("xl", 0, 9), "two": made("rsa-xl", 1, 10), "three": made("brt", 11, 20)}
    words = told(tmp_path / "some", **runs)
    assert (
        "Some runs went on side by side, and are slower for sharing the machine: with 1 other (Transformer-XL; "
        "RSA-XL), with no other (Block-Recurrent)."
    ) in words
    assert NOT_COMPARED in words
    words = told(tmp_path / "all", one=runs["one"], two=runs["two"])
    assert "Each run went on side by side with 1 other: all are slower for sharing the machine." in words
    assert NOT_COMPARED not in words


def test_runs_of_another_kind_shared_the_machine_too(tmp_path: Path) -> None:
    other = made("rsa-xl", 1, 10)
    other["provenance"]["config"]["batch"] = 44
    words = told(tmp_path, one=made("xl", 0, 9), two=other)
    assert words.count("Each run went on side by side with 1 other") == 2


def test_results_that_do_not_say(tmp_path: Path) -> None:
    words = told(tmp_path, one=result("xl"))
    assert "Speed and memory on Example GPU. Whether runs went on side by side is not recorded" in words
    assert "commit" not in words
