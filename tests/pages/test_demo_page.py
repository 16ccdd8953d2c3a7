"""The demo's page, Markdown and picture: what the numbers allow, and nothing more."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from recurrify.pages.demo import demo_tables, demo_verdict, summary, write_demo_page

Result = dict[str, Any]


def words(result: Result, folder: Path) -> str:
    """What a reader sees."""
    write_demo_page(result, folder / "page.html")
    html = re.sub(r"<(style|script).*?</\1>", " ", (folder / "page.html").read_text(encoding="utf-8"), flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", html)).replace("\xa0", " ")


def test_headline_is_the_real_model_with_its_price(result: Result) -> None:
    verdict = demo_verdict(result)
    assert (verdict.number, verdict.interval) == ("25.0 % lower", "95 % interval: 22.7 % to 27.3 %, in this text")
    assert verdict.tone == "better"
    assert verdict.sentence.startswith(
        "The memory lowers perplexity per token by 25.0 % (95 % interval: 22.7 % to 27.3 %)"
    )
    assert verdict.sentence.endswith("full context of 8000 is better, for 1.8 times the FLOPs.")
    assert ("cost over plain windows of 300", "+6.5 % FLOPs") in verdict.facts


def test_a_better_reading_at_the_same_price_is_reported(result: Result) -> None:
    result["real"]["rows"][3]["perplexity_per_token"] = 31.0
    assert "But plain windows of 800 is better at the same price." in demo_verdict(result).sentence


def test_a_worse_memory_is_one_sentence(result: Result) -> None:
    windows = result["real"]["rows"][1]
    assert windows["label"] == "plain windows of 300"
    windows["perplexity_per_token"] = 1.0
    result["real"]["gains"][0].update(relative_gain=-0.004, interval=None, within_noise=None)
    assert demo_verdict(result).sentence == (
        "Plain windows of 300 read better at the same price (0.4 %; one document: no interval): "
        "the memory does not pay here."
    )


@pytest.mark.parametrize(
    ("gain", "interval", "expected"),
    [
        (0.004, [-0.002, 0.01], "no clear difference in perplexity per token"),
        (-0.02, [-0.03, -0.01], "The memory raises perplexity per token by 2.0 %"),
        (0.02, None, "is 2.0 % lower than with plain windows of 300 on this document. A single"),
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
        "Training loss",
        "Example CPU",
        "is</code>",
    ):
        assert expected in text, expected


def test_missing_model_is_reported(result: Result, tmp_path: Path) -> None:
    result["real"]["note"] = "smollm2 cannot be had"
    assert "smollm2 cannot be had" in words(result, tmp_path)


def test_tables(result: Result) -> None:
    shipped, live, gains = demo_tables(result)
    row = ["plain windows, windows of 64", "30.12", "907.2", "1.889", "1.14 M", "28.92 to 31.32"]
    assert shipped.texts[1] == row
    assert [row[1] for row in live.texts] == ["32.62", "31.33"]
    assert [row[-1] for row in gains.texts] == ["better", "better", "within noise"]


def test_summary(result: Result) -> None:
    lines = summary(result)
    start = "The memory lowers perplexity per token by 25.0 % (95 % interval: 22.7 % to 27.3 %) compared with plain"
    assert " ".join(lines).startswith(start)
    assert "     30.00    545 M  full context of 8000" in lines
