"""The page's sections on lengths and on complexity: their numbers, their sentences, their plots."""

import re
from pathlib import Path
from typing import Any

import pytest
from experiment_results import experiment, growth_rows, length_rows, write_size
from test_experiments_page import Page, written

from recurrify.results import save_result


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
    assert "(no file)" in page.words
