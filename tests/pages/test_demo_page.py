"""The page says what the numbers allow, shows them all, and stands alone."""

import copy
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from recurrify.errors import UserError
from recurrify.pages.demo import write_page
from recurrify.pages.plots import write_picture

Result = dict[str, Any]
VOID = {"meta", "br", "hr", "img", "link"}


def page(result: Result, folder: Path) -> str:
    write_page(result, folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


def words(html: str) -> str:
    """What a reader sees."""
    return unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)).replace("\xa0", " ")


def gain(result: Result, weights: str) -> Result:
    return next(entry for entry in result["gains"] if entry["weights"] == weights and entry["overlap"] == 0)


def test_a_clear_gain_is_the_headline(result: Result, tmp_path: Path) -> None:
    text = words(page(result, tmp_path))
    assert "recurrence lowers perplexity per word by 4.3 % (95 % interval 3.6 % to 5.0 %)" in text
    assert "from 30.12 to 28.83" in text


def test_a_gain_within_noise_is_called_that(result: Result, tmp_path: Path) -> None:
    gain(result, "shipped").update(relative_gain=0.004, interval=[-0.002, 0.01], within_noise=True)
    headline = re.search(r'<p class="headline">(.*?)</p>', page(result, tmp_path))
    assert headline is not None
    assert "by −0.4 % (95 % interval −1.0 % to +0.2 %), which is within noise." in words(headline[1])
    assert "lowers" not in headline[1]


def test_a_loss_is_told_as_one(result: Result, tmp_path: Path) -> None:
    gain(result, "shipped").update(relative_gain=-0.02, interval=[-0.03, -0.01])
    assert "raises perplexity per word by 2.0 % (95 % interval 1.0 % to 3.0 %)" in words(page(result, tmp_path))


@pytest.mark.parametrize(("noise", "expected"), [(True, True), (False, False)])
def test_the_live_pair_has_its_own_sentence(result: Result, tmp_path: Path, noise: bool, expected: bool) -> None:
    gain(result, "live")["within_noise"] = noise
    sentence = re.search(r"In the pair trained live just now.*?\.\s", words(page(result, tmp_path)))
    assert sentence is not None
    assert "(600,000 tokens, 2 seeds)" in sentence[0]
    assert ("within noise" in sentence[0]) is expected


def test_tables_show_the_numbers_in_two_groups(result: Result, tmp_path: Path) -> None:
    html = page(result, tmp_path)
    captions = re.findall(r"<caption>(.*?)</caption>", html)
    assert captions[:2] == ["Shipped weights", "Trained live just now: mean over 2 seeds"]
    shipped, live = html.split("<table>")[1:3]
    assert cells(shipped)[4] == ["plain", "0", "30.12", "28.92 to 31.32", "9.15", "1.889", "1.14 M"]
    # The mean of seeds 32.5 and 32.8, and their range.
    assert cells(live)[0][:4] == ["plain", "0", "32.65", "32.50 to 32.80"]
    assert result["made_by"] in words(html)


def cells(table: str) -> list[list[str]]:
    body = table.split("<tbody>")[1].split("</tbody>")[0]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.strip().splitlines()]


def test_generated_text_is_escaped(result: Result, tmp_path: Path) -> None:
    evil = "</pre><script>alert('x')</script>\x00\ud800&amp;"
    result["continuations"] = [dict.fromkeys(("prompt_end", "truth", "plain", "recurrent"), evil)]
    result["made_by"] = result["settings"]["corpus"] = result["provenance"]["config"]["name"] = evil
    result["rows"][0]["model"] = evil
    html = page(result, tmp_path)
    assert "<script" not in html
    assert "\x00" not in html
    assert html.count("&lt;script&gt;alert(&#x27;x&#x27;)") >= 8
    assert "&amp;amp;" in html


def test_the_page_stands_alone(result: Result, tmp_path: Path) -> None:
    html = page(result, tmp_path)
    assert "://" not in html
    assert "@import" not in html
    assert not re.search(r"<(?:script|link|iframe|img|object)\b", html)
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)"', html))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


class Structure(HTMLParser):
    """Collects what makes a document well-formed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name.endswith("href"):
                self.targets.append(str(value).removeprefix("#"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_described(result: Result, tmp_path: Path) -> None:
    html = page(result, tmp_path)
    structure = Structure()
    structure.feed(html)
    assert structure.open == []
    assert len(structure.ids) == len(set(structure.ids))
    assert set(structure.targets) <= set(structure.ids)
    assert html.count("<svg") == html.count('role="img" aria-label="') == 3
    assert html.count("<table>") == html.count("<caption>")
    assert "plain, shipped weights: 6.20 at the start" in html


def test_plots_follow_the_colours_of_the_page(result: Result, tmp_path: Path) -> None:
    for svg in re.findall(r"<svg.*?</svg>", page(result, tmp_path), flags=re.DOTALL):
        assert set(re.findall(r"var\(--(\w+)\)", svg)) == {"ink", "grid", "plain", "recurrent"}
        assert not re.search(r"(?:fill|stroke): #(?!none)", svg)


GOES_WITH = {
    "provenance": "Example CPU",
    "settings": "570,000 parameters",
    "rows": "Perplexity and cost",
    "gains": "What recurrence gains",
    "loss_by_position": "Loss by position",
    "curves": "Live training",
    "continuations": "Continuations",
    "made_by": "demo-weights",
}


def test_every_section_is_on_the_page(result: Result, tmp_path: Path) -> None:
    text = words(page(result, tmp_path))
    assert [section for section, sign in GOES_WITH.items() if sign not in text] == []


@pytest.mark.parametrize("missing", GOES_WITH)
def test_a_missing_section_is_left_out(result: Result, tmp_path: Path, missing: str) -> None:
    value = result.pop(missing)
    absent = page(result, tmp_path)
    assert GOES_WITH[missing] not in words(absent)
    assert not re.search(r"\bNone\b", words(absent))
    result[missing] = type(value)()
    assert page(result, tmp_path) == absent


def test_an_empty_result_makes_a_page_without_claims(tmp_path: Path) -> None:
    text = words(page({"kind": "demo"}, tmp_path))
    assert "holds no comparison" in text
    assert "%" not in text


def test_a_result_without_a_live_pair(result: Result, tmp_path: Path) -> None:
    result["rows"] = [row for row in result["rows"] if row["weights"] == "shipped"]
    result["gains"] = [entry for entry in result["gains"] if entry["weights"] == "shipped"]
    del result["loss_by_position"]["live"], result["curves"]
    text = words(page(result, tmp_path))
    assert "No pair was trained live" in text
    assert "4.3 %" in text


def test_numbers_that_are_missing_are_dashes(result: Result, tmp_path: Path) -> None:
    hollow = copy.deepcopy(result)
    for row in hollow["rows"]:
        row.update(
            perplexity_per_word=None, perplexity_per_word_interval=[None, None], full_flops_per_token=float("nan")
        )
    hollow["gains"][0].update(interval=None, within_noise=None)
    hollow["loss_by_position"]["shipped"]["plain"][0] = None
    html = page(hollow, tmp_path)
    assert cells(html.split("<table>")[1])[0][2:4] == ["–", "–"]
    assert "without an interval that counts as within noise" in words(html)
    assert not re.search(r"\bnan\b", html)


def test_the_same_result_gives_the_same_page(result: Result, tmp_path: Path) -> None:
    assert page(result, tmp_path) == page(result, tmp_path)


def test_the_picture_is_a_png(result: Result, tmp_path: Path) -> None:
    write_picture(result, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="nothing to draw"):
        write_picture({}, tmp_path / "none.png")
