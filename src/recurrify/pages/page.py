"""The page toolkit: a page is a verdict and blocks; Jinja2 templates make one offline HTML file of them.

Example:
    >>> from recurrify.pages import Column, Page, Table, Verdict, line_chart, numbers, write_page
    >>> rows = [["plain", 44.7], ["memory", 33.6]]
    >>> table = Table("Scores", ["model", Column("perplexity", numbers.perplexity)], rows)
    >>> points = [{"position": p, "loss": 5 - p / 9, "model": m} for m in ("plain", "memory") for p in range(9)]
    >>> chart = line_chart(points, x="position", y="loss", series="model", title="Loss by position")
    >>> verdict = Verdict("Memory lowers perplexity per token.", number="25 %", interval="23 % to 27 %")
    >>> write_page("page.html", Page("What memory gains", verdict, [chart, table]))
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import jinja2
from markupsafe import Markup

from recurrify.caching import cache_folder
from recurrify.errors import UserError
from recurrify.pages import numbers
from recurrify.results import write_whole

# HTML allows no control characters but tab and line feed; a model may generate any. Each has a picture in Unicode.
PICTURES = {code: 0x2400 + code for code in (*range(9), *range(11, 32))}


@dataclass(frozen=True)
class Link:
    """A link, as a cell of a table or a part of a text."""

    text: str
    target: str
    """Relative to the page."""


class Block:
    """A part of a page: a dataclass and the template that shows it, which sees it as `block`."""

    template: ClassVar[str]
    package: ClassVar[str] = "recurrify.pages"
    """The package whose folder `templates` holds the template."""


@dataclass(frozen=True)
class Text(Block):
    """A paragraph: plain text, or parts of which some are links."""

    template: ClassVar[str] = "text.html.j2"
    content: str | Sequence[str | Link]
    kind: str = ""
    """"note" for small print, "warning" for what the reader must not miss."""

    @property
    def parts(self) -> Sequence[str | Link]:
        return [self.content] if isinstance(self.content, str) else self.content


@dataclass(frozen=True)
class Listing(Block):
    """A text in a fixed-width font, kept as it is."""

    template: ClassVar[str] = "listing.html.j2"
    text: str
    title: str = ""


@dataclass(frozen=True)
class Terms(Block):
    """Definitions: terms and their meanings."""

    template: ClassVar[str] = "terms.html.j2"
    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Section(Block):
    """Blocks below a heading."""

    template: ClassVar[str] = "section.html.j2"
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Fold(Block):
    """Blocks that are shown when the reader opens them."""

    template: ClassVar[str] = "fold.html.j2"
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Columns(Block):
    """Blocks next to each other where the screen is wide enough."""

    template: ClassVar[str] = "columns.html.j2"
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Column:
    """A column of a table: its title and how its numbers are written."""

    title: str
    show: Callable[[Any], str] | None = None
    """None for a column of words."""
    meaning: str = ""
    """Shown when the reader points at the title."""


@dataclass(frozen=True)
class Cell:
    shown: Any
    order: float | None

    @property
    def long(self) -> bool:
        """Whether it is a sentence, which needs a wide column."""
        return len(str(getattr(self.shown, "text", self.shown))) > 50


@dataclass(frozen=True)
class Table(Block):
    """A sortable table that scrolls in a box of its own; folded on a page that opens with a chart.

    `columns` holds titles (columns of words) and `Column`s; a row holds a value for each: text, a number, the two ends
    of an interval, a `Link`, or None for what is missing.
    """

    template: ClassVar[str] = "table.html.j2"
    caption: str
    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Any]]

    @property
    def titled(self) -> list[Column]:
        return [Column(one) if isinstance(one, str) else one for one in self.columns]

    @property
    def cells(self) -> list[list[Cell]]:
        return [
            [Cell(_shown(value, column), _order(value)) for value, column in zip(row, self.titled, strict=True)]
            for row in self.rows
        ]

    @property
    def stacked(self) -> bool:
        """Whether cells stand below each other on a phone: rows with sentences are wide."""
        return any(cell.long for row in self.cells for cell in row)

    @property
    def header(self) -> list[str]:
        return [column.title for column in self.titled]

    @property
    def texts(self) -> list[list[str]]:
        """The rows as they are shown, for a terminal or Markdown."""
        return [[str(getattr(cell.shown, "text", cell.shown)) for cell in row] for row in self.cells]

    @property
    def text_columns(self) -> int:
        """How many columns, from the left, hold words."""
        return next((place for place, column in enumerate(self.titled) if column.show), len(self.columns))


def _shown(value: Any, column: Column) -> Any:
    if value is None:
        return numbers.MISSING
    return value if isinstance(value, Link | str) or column.show is None else column.show(value)


def _order(value: Any) -> float | None:
    first = value[0] if isinstance(value, tuple | list) and value else value
    return numbers.finite(first)


@dataclass(frozen=True)
class Chart(Block):
    """A Vega-Lite specification with the words for it; `recurrify.pages.charts` makes them."""

    template: ClassVar[str] = "chart.html.j2"
    spec: Mapping[str, Any]
    title: str
    description: str = ""
    """The chart in words, for those who cannot see it."""
    caption: str = ""
    height: int = 280


@dataclass(frozen=True)
class Verdict:
    """The answer on the first screen."""

    sentence: str
    number: str = ""
    """The one large number."""
    what: str = ""
    """What the number is, and compared with what."""
    interval: str = ""
    facts: Sequence[tuple[str, str]] = ()
    """A few labels and values next to it: the cost, what it is compared with."""
    tone: str = ""
    """"better", "worse" or "" for neither."""


@dataclass(frozen=True)
class Page:
    """A title, the answer, and what supports it."""

    title: str
    verdict: Verdict | str
    blocks: Sequence[Block] = ()
    chart: Chart | None = None
    """Shown next to the verdict."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Everything the numbers may depend on, folded at the end."""


def render_page(page: Page) -> str:
    """The page as one HTML document that needs no other file and no network."""
    verdict = Verdict(page.verdict) if isinstance(page.verdict, str) else page.verdict
    blocks = list(page.blocks)
    if facts := _flat(page.provenance):
        table = Table("Settings, code, data, machine", ["what", "value"], list(facts.items()))
        blocks.append(Fold("Provenance: everything these numbers may depend on", [table]))
    return (
        _environment(Block.package)
        .get_template("page.html.j2")
        .render(page=page, verdict=verdict, blocks=blocks, has_chart=_has_chart([page.chart, *blocks]))
    )


def write_page(path: str | Path, page: Page) -> None:
    """Write the page; a reader finds the old file or the new one, never a part."""
    # A text may hold half of a surrogate pair, which no encoding can write.
    write_whole(path, render_page(page).encode("utf-8", errors="replace"))


def _has_chart(blocks: Iterable[Any]) -> bool:
    return any(isinstance(one, Chart) or _has_chart(getattr(one, "blocks", ())) for one in blocks)


def _flat(facts: Mapping[str, Any]) -> dict[str, str]:
    """Nested facts under readable names; what is not known is left out."""
    flat: dict[str, str] = {}
    for key, value in facts.items():
        name = str(key).replace("_", " ")
        if isinstance(value, Mapping):
            flat |= {f"{name}: {inner}": item for inner, item in _flat(value).items()}
        elif value is not None:
            flat[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return flat


@cache
def _environment(package: str) -> jinja2.Environment:
    loaders = [jinja2.PackageLoader(name) for name in dict.fromkeys((package, Block.package))]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    environment.globals.update(render=_render, themes=themes(), chart_configs=_chart_configs, vega=vega_bundle)
    environment.filters["unbroken"] = unbroken
    environment.tests["link"] = lambda value: isinstance(value, Link)
    return environment


def _render(block: Block, folded: bool = True) -> Markup:
    # The template escapes what the block holds.
    return Markup(_environment(block.package).get_template(block.template).render(block=block, folded=folded))


def _printable(value: Any) -> Any:
    return value.translate(PICTURES) if isinstance(value, str) and not isinstance(value, Markup) else value


def unbroken(value: str) -> str:
    """`value` with each number and its unit, percent sign or error on one line."""
    return re.sub(r"(?<=\d) (?=(?:%|[kMGTP]\b))|(?<=±) (?=\d)", "\u00a0", value)


@cache
def themes() -> dict[str, Any]:
    """The colours of the light and the dark theme, for pages and charts alike."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "templates" / "themes.json").read_text())
    return found


def _chart_configs() -> dict[str, Any]:
    from recurrify.pages.charts import chart_config

    return {name: chart_config(theme) for name, theme in themes().items()}


@cache
def vega_bundle() -> Markup:
    """Vega's JavaScript, which a page with charts carries once; kept in the cache, since bundling takes seconds."""
    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    try:
        return Markup(kept.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        # In a process of its own: bundling holds the interpreter, so that no other thread could report progress.
        bundle = "vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')"
        command = [sys.executable, "-X", "utf8", "-c", f"import sys, vl_convert; sys.stdout.write({bundle})"]
        script = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    with suppress(UserError):  # a cache that cannot be written only costs time
        write_whole(kept, script.encode("utf-8"))
    return Markup(script)
