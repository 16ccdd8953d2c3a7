"""The page of an inspected text: what the numbers say, whatever the text holds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from recurrify.pages.inspect import even_share, inspect_lines, inspect_verdict, write_inspection
from recurrify.results import load_result

Result = dict[str, Any]


def page_of(result: Result, folder: Path) -> str:
    return write_inspection(result, folder).read_text(encoding="utf-8")


def reader_data(page: str) -> Result:
    found = re.search(r'<script type="application/json" class="reader-data">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    data: Result = json.loads(found[1])
    return data


def test_reader_holds_every_token_with_losses_and_attention(inspection: Result, tmp_path: Path) -> None:
    data = reader_data(page_of(inspection, tmp_path))
    assert data["text"] == [piece.replace("\ud800", "?") for piece in inspection["tokens"]["text"]]
    assert data["readings"]["recurrent"] == inspection["tokens"]["recurrent"]
    assert data["windows"] == [[1, 6], [6, 10]]
    assert data["attention"][5:7] == [[None, None], [0.5, 0.7]]
    assert data["places"][6] == [0.1, 0.2, 0.3]


def test_every_reading_can_be_chosen(inspection: Result, tmp_path: Path) -> None:
    inspection["tokens"]["full context"] = inspection["tokens"]["plain"]
    inspection["names"] = {"plain": "twin <b>"}
    page = page_of(inspection, tmp_path)
    assert page.count('<option value="full context"') == 2
    assert "twin &lt;b&gt;" in page
    assert ("base, full context", "16.08") in inspect_verdict(inspection).facts


def test_text_is_escaped_and_numbers_are_next_to_the_page(inspection: Result, tmp_path: Path) -> None:
    page = page_of(inspection, tmp_path)
    assert "<b>" not in page.split("<script")[0]
    assert "a &lt;text&gt;" in page
    assert 'href="inspection.json"' in page
    saved = load_result(tmp_path / "inspection.json")
    assert saved["slot_attention"]["mass"][0] == [0.5, 0.25, 0.2, 0.1, None]
    assert inspect_lines(saved) == inspect_lines(inspection)


def test_lines_and_verdict(inspection: Result) -> None:
    first, second, third, fourth = inspect_lines(inspection)
    assert "9 tokens scored in 2 windows: mean loss 2.778 plain, 2.411 with memory (−0.367)" in first
    assert "perplexity per token 16.08 and 11.15" in first
    assert "on 4 tokens and worse on 3" in second
    assert "a token puts 36.2 % of its attention on the memory; the first token of a window puts 60.0 %" in third
    assert "is 0.12 times that at its own" in fourth
    verdict = inspect_verdict(inspection)
    assert (verdict.number, verdict.tone) == ("30.7 % lower", "")
    assert "no clear difference" in verdict.sentence
    assert ("cost", "+6.4 % FLOPs") in verdict.facts


def test_tables(inspection: Result, tmp_path: Path) -> None:
    page = page_of(inspection, tmp_path)
    # Layer 3: three slots and 1, 2, 3 and 4 tokens.
    even = f"{100 * (3 / 4 + 3 / 5 + 3 / 6 + 3 / 7) / 4:.1f} %"
    cells = re.findall(r'<td class="number" data-order="[^"]*">([^<]*)</td>', page)
    assert ["3", "46.2 %", "70.0 %", "30.0 %", even] == cells[5:10]
    assert cells[-6:] == ["0.5", "12.5 %", "1e-06", "&lt; 0.001 %", "0", "0.0 %"]


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [("none", "There is nothing to attend to"), ("compress", "&#39;compress&#39; has no slots")],
)
def test_without_slots(inspection: Result, tmp_path: Path, mechanism: str, expected: str) -> None:
    if mechanism == "none":
        inspection["states"] = {"norm": [], "change": []}
    page = page_of({**inspection, "mechanism": mechanism, "slot_attention": None}, tmp_path)
    assert expected in page
    assert ("runs in plain windows and carries nothing" in page) == (mechanism == "none")


def test_text_of_one_window(inspection: Result, tmp_path: Path) -> None:
    inspection |= {
        "slot_attention": None,
        "windows": [{"first": 1, "stop": 10, "plain": 2.0, "recurrent": 2.0}],
        "gradients": {"windows": [1], "norms": [[4.0]], "mean": [4.0]},
        "states": {"norm": [], "change": []},
    }
    page = page_of(inspection, tmp_path)
    assert "The text ends with its first window" in page
    assert "no loss can depend on an earlier one" in page
    assert "one window: no interval" in page


def test_shares() -> None:
    assert even_share([1, 3], 2) == pytest.approx((1 / 3 + 3 / 5) / 2)
