"""The blocks of a report as Markdown. Plots, which Markdown cannot hold, are told in their own words."""

import re
from collections.abc import Sequence

from recurrify.pages.html_parts import NOT_IN_HTML, Link
from recurrify_papers.report.experiments_blocks import (
    Block,
    Bullets,
    Files,
    Fold,
    Paragraph,
    Plots,
    Section,
    Sides,
    TableBlock,
    Terms,
)


def markdown_page(title: str, blocks: Sequence[Block]) -> str:
    return "\n\n".join([f"# {_text(title)}", *(_block(block) for block in blocks)]) + "\n"


def _text(value: str) -> str:
    """`value` on one line, every sign that Markdown or HTML would read as its own made a letter."""
    line = " ".join(value.translate(NOT_IN_HTML).replace("&", "&amp;").split())
    return re.sub(r"([\\`*_\[\]|<>])", r"\\\1", line)


def _block(block: Block) -> str:
    match block:
        case Paragraph(text, style):
            return f"**{_text(text)}**" if style in ("headline", "warning") else _text(text)
        case Bullets(items):
            return "\n".join(f"- {_text(item)}" for item in items)
        case Files(opening, links, closing):
            return f"{_text(opening)} {', '.join(_link(link) for link in links)}{_text(closing)}"
        case Terms(entries):
            return "\n".join(f"- **{_text(term)}**: {_text(meaning)}" for term, meaning in entries)
        case TableBlock():
            return _table(block)
        case Plots(plots):
            return "\n\n".join(f"Plot: {_text(plot.description)} {_text(plot.caption)}" for plot in plots)
        case Sides(title, lead, texts):
            sides = [f"- **{_text(name)}**: {_text(text)}" for name, text in ([lead] if lead else []) + list(texts)]
            return "\n".join([f"{_text(title)}:", "", *sides])
        case Fold(summary, inner):
            return "\n\n".join([f"{_text(summary)}:", *(_block(item) for item in inner)])
        case Section(title, _, level, inner):
            return "\n\n".join([f"{'#' * level} {_text(title)}", *(_block(item) for item in inner)])


def _link(link: Link) -> str:
    return f"{_text(link.text)} (no file)" if link.target is None else f"[{_text(link.text)}]({link.target})"


def _table(block: TableBlock) -> str:
    table, files = block.table, block.known_files
    header = [*table.header, *(["files"] if files else [])]
    rule = [
        "---" if column < table.text_columns or column == len(table.header) else "---:" for column in range(len(header))
    ]
    rows = [
        [*(_text(cell) for cell in row), *([" ".join(_link(link) for link in files[index])] if files else [])]
        for index, row in enumerate(table.rows)
    ]
    lines = [[_text(cell) for cell in header], rule, *rows]
    return f"**{_text(table.caption)}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
