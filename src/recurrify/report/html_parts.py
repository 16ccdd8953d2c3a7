"""The few HTML elements a page is made of. Every function takes plain text and escapes it."""

import html
from collections.abc import Sequence

from recurrify.report.tables import Table

# HTML allows no control characters but tab and line feed; Python's sources hold form feeds, and a model may
# generate any. Each has a picture in Unicode.
NOT_IN_HTML = {code: 0x2400 + code for code in (*range(9), *range(11, 32))}


def text(value: object) -> str:
    """`value` as text between tags or inside a quoted attribute."""
    return html.escape(str(value).translate(NOT_IN_HTML), quote=True)


def paragraph(value: str, css_class: str = "") -> str:
    attribute = f' class="{css_class}"' if css_class else ""
    # A number and its percent sign stay on one line.
    return f"<p{attribute}>{text(value).replace(' %', '&nbsp;%')}</p>"


def code_block(value: str) -> str:
    return f"<pre><code>{text(value)}</code></pre>"


def section(title: str, parts: Sequence[str]) -> str:
    """A section with a heading; nothing where all its parts are empty."""
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{text(title)}</h2>\n{body}\n</section>" if body else ""


def table(content: Table) -> str:
    """A table in a box that scrolls sideways on a narrow screen, by touch or by keyboard."""
    head = "".join(_cell("th", cell, column, content, ' scope="col"') for column, cell in enumerate(content.header))
    body = []
    previous = None
    for row in content.rows:
        first = _cell("th", row[0], 0, content, ' scope="row"')
        rest = "".join(_cell("td", cell, column, content) for column, cell in enumerate(row) if column)
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


def _cell(tag: str, value: str, column: int, content: Table, attributes: str = "") -> str:
    kind = "" if column < content.text_columns else ' class="number"'
    return f"<{tag}{attributes}{kind}>{text(value)}</{tag}>"


def figure(svg: str, description: str, caption: str) -> str:
    """A plot with the words for it: a description for screen readers and a caption for everybody."""
    return (
        f'<figure>\n<div role="img" aria-label="{text(description)}">{svg}</div>\n'
        f"<figcaption>{text(caption)}</figcaption>\n</figure>"
    )


def terms(entries: Sequence[tuple[str, str]]) -> str:
    items = "\n".join(f"<dt>{text(term)}</dt><dd>{text(meaning)}</dd>" for term, meaning in entries)
    return f"<dl>\n{items}\n</dl>"


def details(summary: str, body: str) -> str:
    return f"<details>\n<summary>{text(summary)}</summary>\n{body}\n</details>"


def document(title: str, body: Sequence[str]) -> str:
    """A whole page that asks the network for nothing, which its own policy enforces."""
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
<main>
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
  --plain: #b34700; --recurrent: #0067a8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181b; --ink: #e4e7ea; --muted: #a0a8b0; --grid: #363c42; --panel: #1e2226;
    --plain: #f2994a; --recurrent: #62b5ec;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.75rem 0 0.75rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 0.5rem; }
h4 { font-size: 0.85rem; margin: 0.6rem 0 0.25rem; color: var(--muted); }
p, figcaption { max-width: 46rem; }
p { margin: 0.6rem 0; }
.headline { font-size: 1.2rem; font-weight: 600; line-height: 1.45; }
.note, figcaption { color: var(--muted); font-size: 0.9rem; }
dl { margin: 0.5rem 0 1.5rem; font-size: 0.92rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.3rem 1.25rem; }
dt { font-weight: 600; }
dd { margin: 0; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.4rem; }
th, td { text-align: left; padding: 0.28rem 0.9rem 0.28rem 0; vertical-align: top; font-weight: 400; }
th + th, th + td, td + td { padding-left: 0.5rem; }
.number { text-align: right; }
tbody { white-space: nowrap; }
thead th { border-bottom: 1px solid var(--ink); font-weight: 600; vertical-align: bottom; }
tbody .start > * { border-top: 1px solid var(--grid); }
tbody tr:last-child > * { border-bottom: 1px solid var(--grid); }
.plots, .sides {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, var(--column)), 1fr));
}
.plots { --column: 26rem; gap: 1.5rem 2rem; }
figure { margin: 0; max-width: 36rem; }
figure svg { display: block; width: 100%; height: auto; }
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
summary { cursor: pointer; font-weight: 600; }
details tbody { white-space: normal; overflow-wrap: anywhere; }
details th { min-width: 8rem; }
:focus-visible { outline: 2px solid var(--recurrent); outline-offset: 2px; }
@media (max-width: 40rem) {
  main { padding: 1.25rem 1rem 3rem; }
  dl { display: block; }
  dd { margin-bottom: 0.5rem; }
}
"""
