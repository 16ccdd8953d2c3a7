"""The demo's page, Markdown and picture: what the numbers allow, and nothing more."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from recurrify.errors import UserError
from recurrify.pages.demo import demo_tables, demo_verdict, markdown, summary, write_demo_page, write_demo_picture

Result = dict[str, Any]


def words(result: Result, folder: Path) -> str:
    """What a reader sees."""
    write_demo_page(result, folder / "page.html")
    html = re.sub(r"<(style|script).*?</\1>", " ", (folder / "page.html").read_text(encoding="utf-8"), flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", html)).replace("\xa0", " ")


def test_headline_is_the_real_model_with_its_price(result: Result) -> None:
    verdict = demo_verdict(result)
    assert (verdict.number, verdict.interval) == ("25.0 % lower", "95 % interval: 22.7 % to 27.3 %")
    assert verdict.tone == "better"
    assert verdict.sentence.startswith("The memory lowers perplexity per token compared with plain windows of 300.")
    assert verdict.sentence.endswith("full context of 8000 is better, for 1.8 times the FLOPs.")
    assert ("cost", "+6.5 % FLOPs") in verdict.facts


def test_a_better_reading_at_the_same_price_is_reported(result: Result) -> None:
    result["real"]["rows"][3]["perplexity_per_token"] = 31.0
    assert "But plain windows of 800 is better at the same price." in demo_verdict(result).sentence


@pytest.mark.parametrize(
    ("gain", "interval", "expected"),
    [
        (0.004, [-0.002, 0.01], "no clear difference in perplexity per token"),
        (-0.02, [-0.03, -0.01], "The memory raises perplexity per token"),
        (0.02, None, "no clear difference"),
    ],
)
def test_headline_claims_no_more_than_its_interval(
    result: Result, gain: float, interval: list[float] | None, expected: str
) -> None:
    result["real"]["gains"][0].update(relative_gain=gain, interval=interval, within_noise=None)
    assert expected in demo_verdict(result).sentence


def test_page_holds_every_part(result: Result, tmp_path: Path) -> None:
    text = words(result, tmp_path)
    for expected in (
        "Five ways to read the same tokens",
        "Loss by position",
        "Continuing right after a window border",
        "Tiny model, trained longer, shipped: the paper's carry lowers perplexity per token",
        "trained just now on 80,000 tokens: the paper's carry: no clear difference",
        "python tools/make_shipped.py",
        "Training loss",
        "Example CPU",
        "is</code>",
    ):
        assert expected in text, expected


@pytest.mark.parametrize("missing", ["real", "settings", "rows", "gains", "loss_by_position", "curves", "provenance"])
def test_missing_parts_are_left_out(result: Result, tmp_path: Path, missing: str) -> None:
    del result[missing]
    assert not re.search(r"\bNone\b", words(result, tmp_path))


def test_empty_result_makes_a_page_without_claims(tmp_path: Path) -> None:
    text = words({"kind": "demo"}, tmp_path)
    assert "holds no comparison" in text
    assert "lower" not in text


def test_missing_model_is_reported(result: Result, tmp_path: Path) -> None:
    result["real"]["note"] = "smollm2 cannot be had"
    assert "smollm2 cannot be had" in words(result, tmp_path)


def test_tables_average_seeds(result: Result) -> None:
    shipped, live, gains = demo_tables(result)
    assert shipped.texts[1] == ["plain windows", "64", "0", "30.12", "907.2", "1.889", "1.14 M", "28.92 to 31.32"]
    assert [row[3] for row in live.texts] == ["32.62", "31.33"]
    assert live.texts[0][-1] == "–"
    assert [row[-1] for row in gains.texts] == ["better", "better", "within noise"]


def test_markdown_and_summary(result: Result) -> None:
    text = markdown(result)
    assert text.startswith("The memory lowers perplexity per token")
    for table in text.split("**")[2::2]:
        lines = [line for line in table.strip().splitlines() if line.startswith("|")]
        assert len({len(line) for line in lines}) == 1
    lines = summary(result)
    assert lines[0].startswith("25.0 % lower (95 % interval: 22.7 % to 27.3 %).")
    assert any("full context of 8000" in line for line in lines)


def test_picture(result: Result, tmp_path: Path) -> None:
    write_demo_picture(result, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="nothing to draw"):
        write_demo_picture({}, tmp_path / "none.png")
