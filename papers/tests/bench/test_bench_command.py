"""`recurrify bench`: what is skipped, what goes on, what is refused, and what the page says."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recurrify_papers.bench import running, sizes
from recurrify_papers.bench.running import Part
from recurrify_papers.report.bench_page import load_parts
from recurrify_papers.report.bench_tables import bench_tables
from support.commands import invoke

Refused = Callable[..., str]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Parts that only note that they ran."""
    ran: list[str] = []

    def named(name: str) -> Callable[..., dict[str, Any]]:
        def measure(bench: Any) -> dict[str, Any]:
            ran.append(f"{name} {bench.ceiling}")
            return {"rows": [], "checks": [], "flops_per_second": 7.0}

        return measure

    made = {
        name: Part(name, named(name), name not in ("ceilings", "peers"), goes_on=False)
        for name in ("ceilings", "naive", "peers")
    }
    monkeypatch.setattr(running, "PARTS", made)
    return ran


def test_a_finished_part_is_skipped_unless_again(parts: list[str], tmp_path: Path) -> None:
    invoke("bench", "peers", "--size", "tiny", "--device", "cpu", "--out", tmp_path)
    assert parts == ["peers None"]
    invoke("bench", "--size", "tiny", "--device", "cpu", "--out", tmp_path)
    assert parts == ["peers None", "ceilings None", "naive 7.0"]
    invoke("bench", "naive", "--size", "tiny", "--device", "cpu", "--out", tmp_path, "--again")
    assert parts[3:] == ["naive 7.0"]  # by the ceiling that was measured before
    saved = json.loads((tmp_path / "naive.json").read_text())
    assert saved["finished"]
    assert saved["provenance"]["config"]["size"] == "tiny"


def test_training_goes_on_with_the_batches_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mini = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "window": 8, "windows": 2, "tail": 4}
    small = replace(sizes.SIZES["tiny"], **mini, rounds=1, matrices=(16,), copied_bytes=1024, batches=(1, 2))
    monkeypatch.setitem(sizes.SIZES, "tiny", small)
    options = ["bench", "training", "--device", "cpu", "--size", "tiny", "--ways", "eager", "--out", tmp_path]
    invoke(*options, "--batches", "1")
    first = json.loads((tmp_path / "training.json").read_text())
    invoke(*options)
    both = json.loads((tmp_path / "training.json").read_text())
    assert [group["batch"] for group in first["groups"]] == [1]
    assert [group["batch"] for group in both["groups"]] == [1, 2]
    assert both["groups"][0] == first["groups"][0]
    tables = {table.caption: table for table in bench_tables(load_parts(tmp_path))}
    assert [row[0] for row in tables["Training, batch 2: 2 windows of 8 tokens"].rows] == [
        "transformers, eager",
        *[f"{kind}, eager{more}" for kind in ("plain", "carry", "tail") for more in ("", ", checkpointed")],
    ]
    assert all(row[3] == "right" for row in tables["Checked first"].rows)


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ("naive", ["--ways", "eager,compiled"]),
        ("training", ["--ways", "compiled"]),
        ("training", ["--batches", "2"]),
        ("training", ["--kinds", "plain,tail"]),
        ("evaluation", ["--kinds", "tail"]),
    ],
    ids=["ways of naive", "ways of training", "batches of training", "kinds of training", "kinds of evaluation"],
)
def test_what_the_file_lacks_is_measured(
    part: str, options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[Any] = []

    def measure(bench: Any, earlier: Any = None) -> dict[str, Any]:
        ran.append(bench.ways)
        asked = {"ways": bench.ways, "kinds": bench.kinds, "side_by_side": bench.side_by_side, "rows": [], "checks": []}
        return {**asked, "groups": [{"batch": batch, **asked} for batch in bench.batches]}

    monkeypatch.setitem(running.PARTS, part, running.PARTS[part]._replace(measure=measure, needs_ceiling=False))
    command = ["bench", part, "--size", "tiny", "--device", "cpu", "--out", tmp_path]
    invoke(*command, "--ways", "eager", "--batches", "1", "--kinds", "plain")
    invoke(*command, "--ways", "eager", "--batches", "1", "--kinds", "plain")
    assert len(ran) == 1
    asked = {"--ways": "eager", "--batches": "1", "--kinds": "plain", options[0]: options[1]}
    invoke(*command, *[word for pair in asked.items() for word in pair])
    assert len(ran) == 2


def test_no_time_is_no_failure(parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("bench", "peers", "--device", "cpu", "--out", tmp_path)
    monkeypatch.setattr(running.Bench, "out_of_time", lambda self: True)
    invoke("bench", "--device", "cpu", "--out", tmp_path, "--max-minutes", "0.1")
    assert parts == ["peers None"]


def test_a_row_without_numbers_says_why(tmp_path: Path) -> None:
    row = {"kind": "carry", "way": "eager", "checkpoint": False, "rows_at_once": 4, "trouble": "does not fit"}
    group = {"batch": 64, "windows": 20, "window": 300, "rows": [row], "ratios": [], "checks": []}
    lengths = [
        {"name": "carry", "way": "eager", "tokens": 600, "tokens_per_second": 1000.0, "peak_bytes": 2**30},
        {"name": "carry", "way": "eager", "tokens": 6000, "trouble": "does not fit"},
    ]
    results = {"training": {"groups": [group], "checks": []}, "lengths": {"rows": lengths, "checks": []}}
    for part, result in results.items():
        text = json.dumps({"kind": "bench", "part": part, "finished": True, **result, "provenance": {}})
        (tmp_path / f"{part}.json").write_text(text)
    told = invoke("bench", "--page", "--out", tmp_path)
    assert told.count("does not fit") == 2
    page = (tmp_path / "bench.md").read_text()
    assert "| carry, eager | 4 | does not fit | – | – |" in page
    assert "| carry | eager | 600 | 1,000 | – | 1.00 |" in page
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_lengths_without_a_number_are_no_picture(tmp_path: Path) -> None:
    row = {"name": "carry", "way": "eager", "tokens": 600, "tokens_per_second": None, "peak_bytes": None}
    result = {"rows": [{**row, "trouble": "no time left"}], "checks": []}
    text = json.dumps({"kind": "bench", "part": "lengths", "finished": False, **result, "provenance": {}})
    (tmp_path / "lengths.json").write_text(text)
    assert "no time left" in invoke("bench", "--page", "--out", tmp_path)
    assert not (tmp_path / "bench.png").exists()
    assert "bench.png" not in (tmp_path / "bench.md").read_text()


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["speed"], "There is no part 'speed': there are ceilings, training, profile, lengths, generation,"),
            (["--size", "huge"], "There is no size 'huge': there are auto, tiny, small, gpt2."),
            (["--ways", "eager,magic"], "There is no way 'magic' of training"),
            (["--ways", "graphs", "--device", "cpu"], "Graphs are for CUDA GPUs, and this is a CPU"),
            (
                ["--kinds", "carry,magic"],
                "There is no kind 'magic' of model to measure: there are plain, carry, tail, lookback.",
            ),
            (["--ways", "compiled", "--budgets", "1.5"], "at least 0 and below 1, such as 0.5: got 1.5"),
            (["--budgets", "half"], "`--budgets` must be numbers"),
            (["--budgets", "0.5"], "is for compiled training steps: add compiled to --ways"),
            (["--ways", "compiled", "--budgets", "0.5", "--kinds", "plain"], "add carry to --kinds"),
            (["generation", "--ways", "compiled", "--budgets", "0.5"], "training to the parts"),
            (["--again", "--only-checks"], "`--again` drops what was timed"),
            (["--batches", "0"], "at least 1 sequence: got 0"),
            (["--batches", "few"], "`--batches` must be whole numbers"),
            (["--page"], "There are no results of a benchmark"),
        ],
        ids=[
            "part",
            "size",
            "way",
            "graphs",
            "kind",
            "budget",
            "budget words",
            "eager budget",
            "nobody's budget",
            "budget of no training",
            "dropped for nothing",
            "batch",
            "words",
            "page",
        ],
    )
    def test_bad_input(self, refused: Refused, options: list[str], words: str, tmp_path: Path) -> None:
        assert words in refused("bench", "--device", "cpu", "--out", tmp_path, *options)

    @NO_GPU
    def test_no_gpu(self, refused: Refused, tmp_path: Path) -> None:
        assert "no usable CUDA GPU" in refused("bench", "--device", "cuda", "--out", tmp_path)

    def test_a_folder_of_another_size(self, refused: Refused, parts: list[str], tmp_path: Path) -> None:
        invoke("bench", "peers", "--size", "tiny", "--device", "cpu", "--out", tmp_path)
        told = refused("bench", "peers", "--size", "small", "--device", "cpu", "--out", tmp_path)
        assert "was measured with size tiny, not small: choose another --out" in told

    def test_a_folder_of_another_device(
        self, refused: Refused, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = ["bench", "naive", "--size", "tiny", "--device", "cpu", "--out", tmp_path]
        invoke(*options)
        monkeypatch.setattr(running, "machine", lambda: {"cpu": "Abacus", "cores": 3})
        told = refused(*options)
        assert "not Abacus, 3 cores: choose another --out" in told
        # Nor is another device's ceiling taken for what is measured anew.
        assert "`recurrify bench ceilings --again`" in refused(*options, "--again")
        invoke("bench", "ceilings", *options[1:], "--again")
        assert len(parts) == 4

    def test_another_number_of_threads(
        self, refused: Refused, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = ["bench", "peers", "--size", "tiny", "--device", "cpu", "--out", tmp_path]
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        invoke(*options)
        assert json.loads((tmp_path / "peers.json").read_text())["provenance"]["config"]["threads"] == 2
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        assert "was measured with 2 threads, not 3: choose another --out" in refused(*options)
        assert "cores, threads: 2" in (tmp_path / "bench.md").read_text()
        invoke(*options, "--again")

    def test_something_else_in_the_folder(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "naive.json").write_text('{"kind": "probe"}')
        assert "is not a result of `recurrify bench`" in refused("bench", "--page", "--out", tmp_path)
