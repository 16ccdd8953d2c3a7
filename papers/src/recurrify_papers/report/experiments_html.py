"""The blocks of a report as HTML."""

from collections.abc import Sequence

from recurrify.pages import html_parts as parts
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


def html_page(title: str, blocks: Sequence[Block]) -> str:
    contents = _contents(blocks)
    sections = [index for index, block in enumerate(blocks) if isinstance(block, Section)]
    first = sections[0] if sections else len(blocks)
    body = [_block(block) for block in blocks]
    navigation = f'<nav aria-label="Contents">\n{contents}\n</nav>' if contents else ""
    return parts.document(title, [*body[:first], navigation, *body[first:]], wide=True)


def _contents(blocks: Sequence[Block]) -> str:
    """Links to every section, nested as the sections are."""
    items = []
    for block in blocks:
        if isinstance(block, Section):
            items.append(
                f'<a href="#{parts.text(block.anchor)}">{parts.text(block.title)}</a>' + _contents(block.blocks)
            )
    return parts.bullets(items)


def _block(block: Block) -> str:
    match block:
        case Paragraph(text, style):
            return parts.paragraph(text, style)
        case Bullets(items):
            return parts.bullets([parts.whole_numbers(item) for item in items])
        case Files(opening, links, closing):
            linked = ", ".join(parts.link(link) for link in links)
            return f'<p class="note">{parts.text(opening)} {linked}{parts.text(closing)}</p>'
        case Terms(entries):
            return parts.terms(entries)
        case TableBlock(table):
            return parts.table(table, block.known_files)
        case Plots(plots, large):
            figures = [parts.figure(plot.svg, plot.description, plot.caption) for plot in plots]
            return "\n".join([f'<div class="plots{" large" if large else ""}">', *figures, "</div>"])
        case Sides(title, lead, texts):
            head = [f"<h4>{parts.text(title)}</h4>", _titled(*lead) if lead else ""]
            return "\n".join([*head, '<div class="sides">', *(_titled(*text) for text in texts), "</div>"])
        case Fold(summary, inner):
            return parts.details(summary, "\n".join(_block(item) for item in inner))
        case Section(title, anchor, level, inner):
            return parts.section(title, [_block(item) for item in inner], level, anchor)


def _titled(title: str, text: str) -> str:
    return f"<div>\n<h5>{parts.text(title)}</h5>\n{parts.code_block(text)}\n</div>"
