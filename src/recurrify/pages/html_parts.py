"""The few HTML elements a page is made of. Every function takes plain text and escapes it."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from recurrify.pages.tables import Table

# HTML allows no control characters but tab and line feed; Python's sources hold form feeds, and a model may
# generate any. Each has a picture in Unicode.
NOT_IN_HTML = {code: 0x2400 + code for code in (*range(9), *range(11, 32))}


@dataclass(frozen=True)
class Link:
    text: str
    name: str
    """What it leads to, in full, for who cannot make it out from a short text."""
    target: str | None
    """Relative to the page; None where the file is not there."""


def text(value: object) -> str:
    """`value` as text between tags or inside a quoted attribute."""
    return html.escape(str(value).translate(NOT_IN_HTML), quote=True)


def paragraph(value: str, css_class: str = "") -> str:
    attribute = f' class="{css_class}"' if css_class else ""
    return f"<p{attribute}>{whole_numbers(value)}</p>"


def whole_numbers(value: str) -> str:
    """`value` escaped, each number and its unit, percent sign or error kept on one line."""
    return re.sub(r"(?<=\d) (?=(?:%|[kMGTP]\b))|(?<=±) (?=\d)", "&nbsp;", text(value))


def code_block(value: str) -> str:
    return f"<pre><code>{text(value)}</code></pre>"


def section(title: str, parts: Sequence[str], level: int = 2, anchor: str = "") -> str:
    """A section with a heading; nothing where all its parts are empty."""
    body = "\n".join(part for part in parts if part)
    attribute = f' id="{text(anchor)}"' if anchor else ""
    return f"<section{attribute}>\n<h{level}>{text(title)}</h{level}>\n{body}\n</section>" if body else ""


def link(content: Link) -> str:
    if content.target is None:
        return f'<span title="{text(content.name)}">{text(content.text)} (no file)</span>'
    # A link whose text is a bare number needs its name said aloud; one whose text says it all does not.
    named = "" if content.text == content.name else f' title="{text(content.name)}" aria-label="{text(content.name)}"'
    return f'<a href="{text(content.target)}"{named}>{text(content.text)}</a>'


def bullets(items: Sequence[str]) -> str:
    """A list of items that are HTML already."""
    return "<ul>\n" + "\n".join(f"<li>{item}</li>" for item in items) + "\n</ul>" if items else ""


def table(content: Table, files: Sequence[Sequence[Link]] = ()) -> str:
    """A table in a box that scrolls sideways on a narrow screen, by touch or by keyboard.

    `files` holds, for each row, links to what its numbers come from: one more column.
    """
    head = "".join(
        f'<th scope="col"{_layout(column, content)}>{whole_numbers(title)}</th>'
        for column, title in enumerate(content.header)
    )
    if files:
        head += '<th scope="col">files</th>'
    body = []
    previous = None
    for index, row in enumerate(content.rows):
        first = _cell("th", row[0], 0, content, ' scope="row"')
        rest = "".join(_cell("td", cell, column, content) for column, cell in enumerate(row) if column)
        if files:
            rest += f'<td class="files">{" ".join(link(file) for file in files[index])}</td>'
        start = ' class="start"' if row[0] != previous else ""
        body.append(f"<tr{start}>{first}{rest}</tr>")
        previous = row[0]
    caption = text(content.caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">\n'
        f"<table>\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(body)
        + "\n</tbody>\n</table>\n</div>"
    )


def _layout(column: int, content: Table) -> str:
    """A header's attribute: of words it tells how long they are, by which the page chooses the column's width."""
    if column >= content.text_columns:
        return ' class="number"'
    return f' style="--letters: {max((len(row[column]) for row in content.rows), default=0)}"'


def _cell(tag: str, value: str, column: int, content: Table, attributes: str = "") -> str:
    kind = "" if column < content.text_columns else ' class="number"'
    return f"<{tag}{attributes}{kind}>{text(value)}</{tag}>"


def figure(svg: str, description: str, caption: str) -> str:
    """A plot with the words for it: a description for screen readers and a caption for everybody."""
    return (
        f'<figure>\n<div role="img" aria-label="{text(description)}">{svg}</div>\n'
        f"<figcaption>{whole_numbers(caption)}</figcaption>\n</figure>"
    )


def terms(entries: Sequence[tuple[str, str]]) -> str:
    items = "\n".join(f"<dt>{text(term)}</dt><dd>{text(meaning)}</dd>" for term, meaning in entries)
    return f"<dl>\n{items}\n</dl>"


def details(summary: str, body: str) -> str:
    return f"<details>\n<summary>{text(summary)}</summary>\n{body}\n</details>"


def document(title: str, body: Sequence[str], *, wide: bool = False) -> str:
    """A whole page that asks the network for nothing, which its own policy enforces; `wide` for wide tables."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    content = "\n\n".join(part for part in body if part)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main{' class="wide"' if wide else ""}>
<h1>{text(title)}</h1>

{content}
</main>
</body>
</html>
"""


STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2024; --muted: #5b636b; --grid: #d9dce0; --panel: #f5f6f7;
  --plain: #b34700; --recurrent: #0067a8; --best: #6d28d9; --xlnet: #574034;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181b; --ink: #e4e7ea; --muted: #a0a8b0; --grid: #363c42; --panel: #1e2226;
    --plain: #f2994a; --recurrent: #62b5ec; --best: #9d7bff; --xlnet: #e9dfc4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
}
main { --page: 62rem; max-width: var(--page); margin: 0 auto; padding: 2rem 1.25rem 4rem; }
main.wide { --page: 74rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.75rem 0 0.75rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 0.5rem; }
h4, h5 { font-size: 0.85rem; margin: 0.6rem 0 0.25rem; color: var(--muted); }
.wide h2 { font-size: 1.4rem; }
.wide h3 { font-size: 1.15rem; margin-top: 2.75rem; }
.wide h4 { font-size: 0.95rem; margin-top: 1.5rem; color: var(--ink); }
p, figcaption, ul { max-width: 46rem; }
a { color: var(--recurrent); }
ul { margin: 0.6rem 0; padding-left: 1.25rem; }
p { margin: 0.6rem 0; }
.headline { font-size: 1.2rem; font-weight: 600; line-height: 1.45; }
.note, figcaption { color: var(--muted); font-size: 0.9rem; }
.warning { border-left: 4px solid var(--plain); padding: 0.4rem 0 0.4rem 0.9rem; font-weight: 600; }
dl { margin: 0.5rem 0 1.5rem; font-size: 0.92rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.3rem 1.25rem; }
dt { font-weight: 600; }
dd { margin: 0; }
.scroll { overflow-x: auto; margin: 1rem 0; }
.scroll { /* a shadow on the side where more can be scrolled to */
  background:
    linear-gradient(to right, var(--paper) 40%, transparent) 0 0 / 2rem 100% no-repeat local,
    linear-gradient(to left, var(--paper) 40%, transparent) 100% 0 / 2rem 100% no-repeat local,
    linear-gradient(to right, var(--muted), transparent) 0 0 / 0.4rem 100% no-repeat scroll,
    linear-gradient(to left, var(--muted), transparent) 100% 0 / 0.4rem 100% no-repeat scroll;
}
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.4rem; }
caption { max-width: calc(min(100vw, var(--page)) - 2.5rem); } /* seen whole where its table has to be scrolled */
th, td { text-align: left; padding: 0.28rem 0.9rem 0.28rem 0; vertical-align: top; font-weight: 400; }
th + th, th + td, td + td { padding-left: 0.5rem; }
.number { text-align: right; }
tbody { white-space: nowrap; }
.wide table { font-size: 0.88rem; }
.wide :is(th, td) { padding-right: 0.5rem; }
.wide tbody :is(th, td):not(.number, .files) { white-space: normal; }
.wide tbody :is(.number, .files) { white-space: nowrap; }
.wide thead th[style] { /* a word in one line, a phrase in two and not in five */
  min-width: max(min(var(--letters) * 0.6em + 1rem, 6.5rem), min(var(--letters) * 0.28em + 0.5rem, 20em, 45vw));
}
.files a { padding: 0 0.25rem; }
thead th { border-bottom: 1px solid var(--ink); font-weight: 600; vertical-align: bottom; }
tbody .start > * { border-top: 1px solid var(--grid); }
tbody tr:last-child > * { border-bottom: 1px solid var(--grid); }
.plots, .sides {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, var(--column)), 1fr));
}
.plots { --column: 26rem; gap: 1.5rem 2rem; }
figure { margin: 0; max-width: 36rem; }
figure svg { display: block; width: 100%; height: auto; }
.large { --column: 100%; }
.large figure { max-width: 60rem; }
.large figure > div { overflow-x: auto; } /* its letters would be too small on a narrow screen */
.large svg { min-width: 42rem; }
figure svg text { font-family: inherit !important; }
.sides { --column: 17rem; gap: 0 0.75rem; }
.sides > div { min-width: 0; }
pre {
  margin: 0; padding: 0.6rem 0.75rem;
  background: var(--panel); border: 1px solid var(--grid); border-radius: 4px;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.82rem; line-height: 1.45; tab-size: 4;
}
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
p code { font-size: 0.9em; overflow-wrap: anywhere; }
details { margin-top: 2.75rem; border-top: 1px solid var(--grid); padding-top: 1rem; }
section details { margin-top: 0.75rem; border-top: 0; padding-top: 0; }
summary { cursor: pointer; font-weight: 600; }
details tbody { white-space: normal; overflow-wrap: anywhere; }
details th { min-width: 8rem; }
.wide details th.number { min-width: 0; }
:focus-visible { outline: 2px solid var(--recurrent); outline-offset: 2px; }
@media (max-width: 40rem) {
  main { padding: 1.25rem 1rem 3rem; }
  dl { display: block; }
  dd { margin-bottom: 0.5rem; }
}
"""
