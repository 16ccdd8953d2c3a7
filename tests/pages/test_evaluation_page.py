"""The page of an evaluation."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from recurrify import UserError
from recurrify.cli import options
from recurrify.pages.evaluation import gain_table, score_table, write_evaluation_page


def page(result: dict[str, Any], folder: Path) -> str:
    write_evaluation_page(result, folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8").replace("\xa0", " ")


def test_first_screen_has_gain_interval_and_cost(evaluation: dict[str, Any], tmp_path: Path) -> None:
    text = page(evaluation, tmp_path)
    assert "10.0 % lower</p>" in text
    assert "95 % interval: 9.3 % to 10.7 %" in text
    assert "recurrent lowers perplexity per token by 10.0 % (95 % interval: 9.3 % to 10.7 %) compared with" in text
    assert "+6.1 % FLOPs" in text
    assert "These models were not trained on the same data." in text
    assert text.count('<figure class="chart">') == 2


def test_labels_name_what_is_compared(evaluation: dict[str, Any], tmp_path: Path) -> None:
    evaluation["rows"][0]["label"] = "base in its full context"
    evaluation["gains"][0]["against_label"] = "base in its full context"
    assert "compared with base in its full context." in page(evaluation, tmp_path)


def test_one_model_shows_its_perplexity(evaluation: dict[str, Any], tmp_path: Path) -> None:
    evaluation.update(gains=[], rows=evaluation["rows"][:1])
    text = page(evaluation, tmp_path)
    assert "30.00</p>" in text
    assert "95 % interval: 28.80 to 31.20" in text
    assert "This result holds no scores" in page({"kind": "evaluation"}, tmp_path)


def test_without_altair_only_pages_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.delitem(sys.modules, "recurrify.pages.charts", raising=False)
    import_module("recurrify.cli.evaluate")
    with pytest.raises(UserError, match=r'run `pip install "recurrify\[pages\]"`'):
        options.check_page(Path("new.html"))


def test_missing_numbers_are_dashes(evaluation: dict[str, Any]) -> None:
    rows = [{"model": "a", "perplexity_per_token": float("nan")}]
    assert score_table("s", rows).texts == [["a, windows of None", *["–"] * 5]]
    assert gain_table([{"model": "a"}]).rows == []
