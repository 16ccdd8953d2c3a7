"""Pages, tables and charts of any kind: escaped, complete, in one file."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from recurrify import pages
from recurrify.errors import UserError
from recurrify.pages import (
    Column,
    Columns,
    Fold,
    Link,
    Listing,
    Page,
    Section,
    Table,
    Terms,
    Text,
    Verdict,
    bar_chart,
    line_chart,
    numbers,
    render_page,
    write_page,
    write_picture,
)

EVIL = "</pre></script><script>alert('x')</script>\x00\ud800&amp;"
POINTS = [{"x": x, "y": 1 / (x + 1), "low": 0, "high": 2, "model": m} for m in ("a", "b") for x in range(4)]
VOID = {"meta", "link", "br"}


class Structure(HTMLParser):
    """Checks that elements are closed in order, and collects ids and addresses."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [str(value) for name, value in attrs if name == "id"]
        self.addresses += [str(value) for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def without_vega(html: str) -> str:
    """The page without the library, which holds addresses and tags in strings."""
    return re.sub(r'<script type="module">.*?</script>', "", html, flags=re.DOTALL)


def everything(text: str) -> Page:
    record = {"name": text, "value": 1.0, "low": 0.5, "high": 2.0}
    return Page(
        text,
        Verdict(text, number=text, interval=text, facts=[(text, text)], tone="better"),
        [
            Section(text, [Text([text, Link(text, "there.html")], "note")]),
            Columns([bar_chart([record], x="value", y="name", title=text, interval=("low", "high"), caption=text)]),
            Fold(text, [Terms([(text, text)]), Listing(text, text)]),
            Table(text, [text, Column(text, numbers.perplexity, text)], [[text, 3.0], [Link(text, "x"), text]]),
        ],
        line_chart([{**one, "model": text} for one in POINTS], x="x", y="y", series="model", title=text),
        {text: {text: text}},
    )


def test_every_text_is_escaped(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", everything(EVIL))
    html = without_vega((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "<script>" not in html
    assert "\x00" not in html
    assert html.count("&lt;script&gt;alert(&#39;x&#39;)") >= 15
    Structure(html)


def test_page_is_one_offline_file() -> None:
    html = render_page(everything("words"))
    found = Structure(without_vega(html))
    assert len(found.ids) == len(set(found.ids))
    assert set(found.addresses) == {"data:,", "there.html", "x"}
    assert "default-src 'none'" in html
    assert html.count("window.vegaEmbed=") == 1
    assert html.count('role="img"') == 2
    assert "window.vegaEmbed=" not in render_page(Page("no chart", "Nothing to draw."))


def test_same_page_gives_same_file() -> None:
    assert render_page(everything("words")) == render_page(everything("words"))


def test_table_shows_formatted_values_and_sorts_by_their_numbers() -> None:
    columns = ["model", Column("perplexity", numbers.perplexity), Column("interval", numbers.perplexity_range)]
    table = Table("Scores", columns, [["a", 1234.5, (10.0, 20.0)], ["b", None, None]])
    assert table.texts == [["a", "1,234", "10.00 to 20.00"], ["b", "–", "–"]]
    assert (table.header, table.text_columns) == (["model", "perplexity", "interval"], 1)
    html = render_page(Page("t", "v", [table]))
    assert 'data-order="1234.5">1,234</td>' in html
    assert 'data-order="10.0">10.00 to 20.00</td>' in html
    assert "<details class=" not in html


def test_tables_are_folded_on_a_page_with_a_chart() -> None:
    table, chart = Table("Scores", ["model"], [["a"]]), line_chart(POINTS, x="x", y="y", title="t")
    html = render_page(Page("t", "v", [Section("s", [table]), Fold("f", [table])], chart))
    assert html.count('<details class="table">') == 1


def test_charts_leave_out_what_is_not_a_number_and_draw_levels() -> None:
    records = [*POINTS, {"x": 9, "y": None, "model": "a"}, {"x": 9, "y": float("nan"), "model": "b"}]
    chart = line_chart(
        records, x="x", y="y", series="model", title="t", band=("low", "high"), levels={"chance": 0.25}, marks={"m": 2}
    )
    sets = list(chart.spec["datasets"].values())
    assert POINTS in sets
    assert [{"level": 0.25, "name": "chance"}] in sets
    assert [{"level": 2, "name": "m"}] in sets
    assert "#" not in str({key: value for key, value in chart.spec.items() if key != "$schema"}).replace("'#", "'")


def test_single_points_differ_by_shape_and_lines_by_dashes() -> None:
    def encoded(records: list[dict[str, Any]], series: str | None = None) -> set[str]:
        spec = line_chart(records, x="x", y="y", title="t", series=series).spec
        return {name for layer in spec["layer"] for name in layer["encoding"]}

    points = [{"x": 1, "y": 2, "model": "a"}, {"x": 2, "y": 1, "model": "b"}]
    assert {"shape", "strokeDash"} & encoded(points, series="model") == {"shape"}
    assert {"shape", "strokeDash"} & encoded([*points, {**points[0], "x": 3}], series="model") == {"strokeDash"}
    for records in ([], points):  # without series
        assert not {"shape", "strokeDash"} & encoded(records)


def test_picture_is_a_png(tmp_path: Path) -> None:
    chart = line_chart(POINTS, x="x", y="y", series="model", title="t")
    write_picture([chart, chart], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="nothing to draw"):
        write_picture([], tmp_path / "none.png")


def test_public_names_exist() -> None:
    assert all(getattr(pages, name) is not None for name in pages.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pages.nothing


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.14e6, "1.14 M"), (1.3e6, "1.30 M"), (999_999, "1.00 M"), (123_456, "123 k"), (12, "12.0"), (None, "–")],
)
def test_large_numbers_keep_three_digits(value: float | None, expected: str) -> None:
    assert numbers.large(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0432, "+4.3 %"), (-0.003, "−0.3 %"), (-0.0001, "0.0 %"), (None, "–")]
)
def test_percentages_have_a_sign(value: float | None, expected: str) -> None:
    assert numbers.percent(value, signed=True) == expected
