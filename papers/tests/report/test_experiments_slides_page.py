"""The page's sections on lengths and on complexity: their numbers, their sentences, their plots."""

import re
from pathlib import Path
from typing import Any

import pytest
from experiment_results import experiment, growth_rows, length_rows, write_size
from test_experiments_page import Page, written

from recurrify.results import save_result
from recurrify_papers.report.experiments_page import write_experiments_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("slides")
    lengths = experiment("slides-lengths", "lengths", "Recurrent rules", length_rows(), hyperparameters=None)
    growth = experiment("slides-complexity", "complexity", "Time and memory", growth_rows(), hyperparameters=None)
    write_size(folder / "root" / "small", [lengths, growth])
    return written(folder / "root", folder / "out")


def test_accuracies_stand_at_multiples_of_the_training_length(page: Page) -> None:
    shown = page.table("Accuracy by length, mean ± standard deviation over 3 seeds; trained on lengths up to 40")
    assert [(row["rule"], row["model"]) for row in shown] == [
        ("Parity", "transformer"),
        ("Parity", "LSTM"),
        ("Dyck-2", "transformer"),
        ("Dyck-2", "LSTM"),
    ]
    assert list(shown[0]) == ["rule", "model", "40", "120", "200", "400", "chance", "files"]
    assert (shown[0]["40"], shown[0]["400"], shown[0]["chance"]) == ("97.0 ± 1.2 %", "51.0 ± 1.2 %", "50.0 %")
    assert shown[3]["400"] == "99.8 ± 1.2 %"
    assert any(link.endswith("small/lengths/dyck-lstm-lr0.001-s2.json") for link in page.links)


def test_it_is_said_who_knows_a_rule_beyond_its_training(page: Page) -> None:
    assert (
        "Parity: at 40, the training length, transformer and LSTM are at least 95 % right; at 400, LSTM is. "
        "The best there is LSTM with 99.8 %, where chance is 50.0 %."
    ) in page.words.replace("\xa0", " ")
    models = page.table("Models")
    assert [row["parameters"] for row in models] == ["150 k", "150 k"]
    assert models[0]["learning rate"] == "Parity 1e-3, Dyck-2 1e-3"


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ([3e-4, 1e-3, 3e-3], "up to length 40, of 3e-4, 1e-3, 3e-3."),
        ([3e-4, 1e-3], "of 3e-4, 1e-3; for 4 of 4 it is at the edge of these, and others might serve better."),
        ([1e-3], "up to length 40, of 1e-3."),
        (None, "up to length 40."),
    ],
)
def test_rates_at_the_edge_are_told(rates: list[float] | None, told: str, tmp_path: Path) -> None:
    rows = [{**row, "rates": rates} for row in length_rows()]
    save_result(tmp_path / "root" / "small" / "a.json", experiment("a", "lengths", "Lengths", rows))
    assert told in written(tmp_path / "root", tmp_path / "out").words.replace("\xa0", " ")


def test_nobody_is_called_the_best_of_those_who_guess(tmp_path: Path) -> None:
    rows = [row for row in length_rows() if row["arch"] == "transformer"]
    save_result(tmp_path / "root" / "small" / "a.json", experiment("a", "lengths", "Lengths", rows))
    words = written(tmp_path / "root", tmp_path / "out").words.replace("\xa0", " ")
    assert (
        "Parity: at 40, the training length, transformer is at least 95 % right; at 400, no model is. "
        "Nobody is clearly above chance there, which is 50.0 %."
    ) in words


def test_differences_of_their_own_stand_in_their_sections_alone(page: Page) -> None:
    assert page.words.count("novels instead of PG-19") == 2
    assert "How this size differs from what was published" not in page.words


def test_the_terminal_names_what_is_on_the_page(tmp_path: Path) -> None:
    for name in ("slides-lengths", "b"):
        found = experiment(name, "lengths", "Lengths", length_rows())
        save_result(tmp_path / "root" / "small" / f"{name}.json", found)
    (line,) = write_experiments_page(tmp_path / "root", tmp_path / "out")
    assert line.endswith("has not been run at this size. On the page: b, slides-lengths.")


def test_exponents_stand_beside_the_theory(page: Page) -> None:
    shown = page.table("Exponents ± standard errors")
    assert shown[0] == {
        "part": "self-attention, fused",
        "theory": "O(T²·D)",
        "along": "length T, at D = 512",
        "exponent in theory": "2",
        "time": "1.97 ± 0.02",
        "time, forward alone": "1.97 ± 0.02",
        "memory": "–",
        "operations": "2.00",
    }
    assert shown[3]["memory"] == "1.00 ± 0.02"
    points = page.table("Medians")
    assert len(points) == 16
    # 1e-12 · 4096² · 512 seconds, and 8 · 4096 · 512 bytes.
    assert points[3]["forward and backward, ms"] == "8.59"
    assert points[11]["peak bytes"] == "16.8 M"


def test_plots_are_drawn_and_told(page: Page) -> None:
    told = " ".join(page.descriptions)
    assert "Parity. transformer: 97.0 % at 20, 97.0 % at 40, 51.0 % at 400; LSTM: 99.8 % at 20" in told
    assert "Plot of time against width D, both on logarithmic scales. self-attention, fused: exponent 0.97" in told
    assert "Plot of memory against length T, both on logarithmic scales. RSA scan: exponent 1.00 ± 0.02." in told
    assert len(page.descriptions) == 6
    plots = re.findall(r"<svg.*?</svg>", page.html, flags=re.DOTALL)
    assert all("var(--ink)" in plot and not re.search(r"(?:fill|stroke): #", plot) for plot in plots)
    assert "trained up to 40" in plots[0]
    assert "RSA scan: T^0.97, in theory T^1" in plots[2]


def test_it_is_shown_what_the_last_symbols_alone_allow(tmp_path: Path) -> None:
    rows = [
        {**row, "short_memory": 1.0 if row["length"] <= 40 else {"parity": 0.5, "dyck": 0.943}[row["task"]]}
        for row in length_rows()
    ]
    save_result(tmp_path / "root" / "small" / "a.json", experiment("a", "lengths", "Lengths", rows))
    page = written(tmp_path / "root", tmp_path / "out")
    shown = page.table("Accuracy by length")
    assert list(shown[0])[-2:] == ["chance", "last 40 symbols alone"]
    assert [row["last 40 symbols alone"] for row in shown] == ["50.0 %", "50.0 %", "94.3 %", "94.3 %"]
    words = page.words.replace("\xa0", " ")
    assert "with 99.8 %, where chance is 37.5 % and the last 40 symbols alone allow 94.3 %." in words
    assert words.count("Whoever knows a rule and sees the last 40 symbols alone") == 1
    assert "Pale: the best guess from the last 40 symbols alone." in words
    assert "the last 40 symbols alone allow 94.3 % at 400." in " ".join(page.descriptions)
    plots = re.findall(r"<svg.*?</svg>", page.html, flags=re.DOTALL)
    assert all("last 40 symbols alone" in plot for plot in plots)


def test_sizes_that_are_mostly_launching_are_named(tmp_path: Path) -> None:
    rows = growth_rows()
    floor = {"seconds": 0.0004, "forward_seconds": 0.0001, "times": 5}
    nothing = {"seconds": [], "forward_seconds": []}
    for row in rows:
        row |= {"floor": floor, "left_out": nothing, "clock": "device", "not_captured": None}
    rows[2]["left_out"] = {"seconds": [512, 1024], "forward_seconds": [512]}
    rows[2]["exponents"] = {"peak_bytes": rows[2]["exponents"]["peak_bytes"]}
    rows[1] |= {"clock": "host", "not_captured": "not <permitted>"}
    rows[3]["at"] = {"T": 65_536}
    save_result(tmp_path / "root" / "small" / "b.json", experiment("b", "complexity", "Growth", rows))
    page = written(tmp_path / "root", tmp_path / "out")
    words = page.words.replace("\xa0", " ")
    assert (
        "Left out of the fits, since they take less than 5 times what the part takes for a single position, which is "
        "nearly all launching: RSA scan along length T, T = 512 and 1,024 (single position 0.4 ms), in the forward "
        "pass alone T = 512."
    ) in words
    assert "captured CUDA graphs by the device's clock" in words
    assert "could not be captured: self-attention, fused along width D (not <permitted>)." in words
    shown = page.table("Exponents ± standard errors")
    assert (shown[2]["time"], shown[2]["time, forward alone"]) == ("too few sizes to fit", "too few sizes to fit")
    assert shown[2]["memory"] == "1.00 ± 0.02"
    assert "RSA scan: too few sizes to fit." in " ".join(page.descriptions)
    assert "RSA scan, at T = 65,536: D^0.97" in page.html


def test_without_memory_that_is_said(tmp_path: Path) -> None:
    rows = growth_rows()[:2]
    save_result(tmp_path / "root" / "tiny" / "c.json", experiment("c", "complexity", "Growth", rows))
    page = written(tmp_path / "root", tmp_path / "out")
    assert "Memory was not measured: nobody counts it on a CPU." in page.words
    assert not any("memory against" in told for told in page.descriptions)


def test_odd_rows_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    evil = "</td><script>alert(1)</script>$\\frac{"
    odd: list[Any] = [
        {"task": evil, "arch": evil, "length": 7, "accuracy": 0.25, "reads": evil, "files": ["../../out.json"]},
        {"task": "parity", "arch": "gru", "length": -3, "accuracy": 0.5},
        {"task": "parity", "arch": "gru", "length": 30, "accuracy": None},
    ]
    part = {**growth_rows()[0], "part": evil, "theory": evil, "exponents": None, "at": {evil: 3}}
    save_result(tmp_path / "root" / "small" / "a.json", experiment("a", "lengths", "Lengths", odd))
    save_result(tmp_path / "root" / "small" / "b.json", experiment("b", "complexity", "Growth", [part, {"part": evil}]))
    page = written(tmp_path / "root", tmp_path / "out")
    assert "<script" not in page.html
    assert len(page.table("Accuracy by length")) == 1
    assert len(page.descriptions) == 2
    assert "out.json" not in page.html
