"""The page of an inspected text: that it says what the numbers say, whatever the text holds."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from recurrify.pages.inspect import inspect_lines, write_inspection
from recurrify.pages.inspect_plots import columns_of, even_share, mean_by_position
from recurrify.results import load_result

PIECES = ["def", " f", "(x):", "\n    ", "<b>&\"'", "\x0c", "", "é", "\ud800", " end"]
PLAIN = [None, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 9.0]
RECURRENT = [None, 1.95, 1.9, 1.0, 5.5, 2.35, 2.0, 0.0, 3.0, 4.0]


def result(**changed: Any) -> dict[str, Any]:
    """Made up: no number in it was measured."""
    return {
        "kind": "inspection",
        "model": "some/model",
        "plain": None,
        "mechanism": "tail",
        "recurrence": {"window": 5, "overlap": 0, "bptt_windows": None},
        "document": "a <text>",
        "tokens": {"text": PIECES, "plain": PLAIN, "recurrent": RECURRENT},
        "windows": [
            {"first": 1, "stop": 6, "plain": 2.0, "recurrent": 2.54},
            {"first": 6, "stop": 10, "plain": 3.75, "recurrent": 2.25},
        ],
        "slot_attention": {
            "layers": [2, 3],
            "slots": [1, 3],
            "windows": 1,
            "mass": [[0.5, 0.25, 0.2, 0.1, math.nan], [0.7, 0.45, 0.4, 0.3, math.nan]],
        },
        "gradients": {"windows": [2], "norms": [[4.0, 0.5, 1e-6, 0.0]], "mean": [4.0, 0.5, 1e-6, 0.0]},
        "states": {"norm": [3.0, 5.0], "change": [None, 4.0]},
        "provenance": {"config": {"model": "some/model"}},
        **changed,
    }


class Reader(HTMLParser):
    """Collects the tokens of each reading box: (class, text, tip)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tokens: list[list[str]] = []
        self.borders: list[str] = []
        self.inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "data-tip" in found:
            self.tokens.append([str(found["class"]), "", str(found["data-tip"])])
            self.inside = "token"
        elif found.get("class") == "border":
            self.borders.append("")
            self.inside = "border"

    def handle_endtag(self, tag: str) -> None:
        self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside == "token":
            self.tokens[-1][1] += data
        elif self.inside == "border":
            self.borders[-1] += data


def page_of(folder: Path, **changed: Any) -> str:
    return write_inspection(result(**changed), folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page of the result as it is lies."""
    folder = tmp_path_factory.mktemp("inspected")
    page_of(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


class TestText:
    def test_every_token_once_in_each_view(self, page: str) -> None:
        tokens = Reader(page).tokens
        assert len(tokens) == 3 * len(PIECES)
        shown = [text for _, text, _ in tokens]
        # Half a surrogate pair and a form feed cannot stand in HTML.
        expected = [piece.replace("\ud800", "?").replace("\x0c", "␌") for piece in PIECES]
        assert shown[: len(PIECES)] == expected
        both = shown[len(PIECES) :]
        assert both[:6] == both[6:12] == expected[:6]
        assert both[12:16] == both[16:] == expected[6:]

    def test_colours_are_differences(self, page: str) -> None:
        tokens = Reader(page).tokens[: len(PIECES)]
        classes = [css.split() for css, _, _ in tokens]
        steps = [next((css for css in found if re.fullmatch(r"[gw]\d", css)), None) for found in classes]
        assert steps == [None, None, "g1", "g3", "w4", "w2", None, "g3", "w3", "g4"]
        assert "n" in classes[3]
        assert "e" in classes[6]

    def test_colours_are_losses_side_by_side(self, page: str) -> None:
        tokens = Reader(page).tokens[len(PIECES) :]
        plain, recurrent = tokens[:6], tokens[6:12]
        assert [css.split()[1] for css, _, _ in plain[1:]] == ["l3"] * 5
        assert [css.split()[1] for css, _, _ in recurrent[1:]] == ["l2", "l2", "l2", "l4", "l3"]

    def test_tips_hold_both_losses(self, page: str) -> None:
        tips = [tip for _, _, tip in Reader(page).tokens]
        assert "nothing predicts it" in tips[0]
        assert tips[3] == "↵␣␣␣␣   plain 2.00, recurrent 1.00 (−1.000)"
        assert tips[4].endswith("plain 2.00, recurrent 5.50 (+3.500)")

    def test_borders(self, page: str) -> None:
        borders = Reader(page).borders
        assert borders[:2] == [
            "window 1: plain 2.00, recurrent 2.54 (+0.540)",
            "window 2: plain 3.75, recurrent 2.25 (−1.500)",
        ]
        assert borders[2:] == [
            f"window {window}, {model}: {loss}"
            for window, model, loss in (
                (1, "plain", "2.00"),
                (1, "recurrent", "2.54"),
                (2, "plain", "3.75"),
                (2, "recurrent", "2.25"),
            )
        ]


class TestPage:
    def test_asks_for_nothing_and_escapes_everything(self, page: str) -> None:
        assert "<b>" not in page
        assert "a &lt;text&gt;" in page
        assert "<script" not in page
        assert "http://" not in page.replace("http://www.w3.org", "")
        assert 'href="inspection.json"' in page
        # Placeholders of the plots' colours must all have become the page's own.
        assert "#01020" not in page

    def test_numbers_lie_beside_it(self, folder: Path) -> None:
        saved = load_result(folder / "inspection.json")
        assert saved["tokens"]["recurrent"] == RECURRENT
        assert saved["slot_attention"]["mass"][0] == [0.5, 0.25, 0.2, 0.1, None]
        assert inspect_lines(saved) == inspect_lines(result())

    def test_lines(self) -> None:
        first, second, third, fourth = inspect_lines(result())
        assert "9 tokens scored in 2 windows: mean loss 2.778 plain, 2.411 recurrent (−0.367)" in first
        assert "perplexity per token 16.08 and 11.15" in first
        assert "on 4 tokens, and worse on 3;" in second
        assert "36.2 % of the attention of layers 2 to 3 is on it; at a window's first position 60.0 %" in third
        assert "is 0.12 times that at its own" in fourth

    def test_tables(self, page: str) -> None:
        # Layer 3: three slots beside 1, 2, 3 and 4 tokens.
        even = f"{100 * (3 / 4 + 3 / 5 + 3 / 6 + 3 / 7) / 4:.1f} %"
        row = ["3", "3", "46.2 %", "70.0 %", "30.0 %", even]
        assert '<th scope="row">3</th>' + "".join(f'<td class="number">{cell}</td>' for cell in row[1:]) in page
        assert '<td class="number">0.5</td><td class="number">12.5 %</td>' in page
        assert '<td class="number">1e-06</td><td class="number">&lt; 0.001 %</td>' in page
        assert '<td class="number">0</td><td class="number">0.0 %</td>' in page

    @pytest.mark.parametrize(
        ("mechanism", "expected"),
        [("none", "There is nothing to attend to"), ("compress", "&#x27;compress&#x27; has no slots")],
        ids=["none", "compress"],
    )
    def test_without_slots(self, tmp_path: Path, mechanism: str, expected: str) -> None:
        states = {"norm": [], "change": []} if mechanism == "none" else result()["states"]
        page = page_of(tmp_path, mechanism=mechanism, slot_attention=None, states=states)
        assert expected in page
        assert ("runs in plain windows and carries nothing" in page) == (mechanism == "none")

    def test_text_of_one_window(self, tmp_path: Path) -> None:
        page = page_of(
            tmp_path,
            slot_attention=None,
            windows=[{"first": 1, "stop": 10, "plain": 2.0, "recurrent": 2.0}],
            gradients={"windows": [1], "norms": [[4.0]], "mean": [4.0]},
            states={"norm": [], "change": []},
        )
        assert "The text ends with its first window" in page
        assert "no loss could depend on an earlier one" in page

    def test_windows_and_the_other_model_are_told(self, tmp_path: Path) -> None:
        recurrence = {"window": 5, "overlap": 2, "bptt_windows": 4}
        page = page_of(tmp_path, recurrence=recurrence, plain="a/twin", slot_attention=None)
        assert "cuts gradients" not in page
        assert "windows of 5 tokens, 2 of them shared" in page
        assert "Plain: a/twin, in the same windows" in page


class TestShares:
    def test_positions_without_numbers_are_left_out(self) -> None:
        assert mean_by_position([[0.5, None, 0.1], [0.7, 0.2, 0.3]]) == [(0, 0.6), (2, 0.2)]

    def test_even(self) -> None:
        assert even_share([1, 3], 2) == pytest.approx((1 / 3 + 3 / 5) / 2)

    def test_many_positions_share_columns(self) -> None:
        mass = [[float(position) for position in range(130)]]
        edges, values = columns_of(mass)
        assert len(values[0]) == 44
        assert edges[:2] == [0.5, 3.5]
        assert edges[-1] == 130.5
        assert values[0][:2] == [1.0, 4.0]
        assert values[0][-1] == 129.0
