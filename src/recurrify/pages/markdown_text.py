"""A demo result as Markdown whose tables are padded, so that it reads well in a terminal too."""

import textwrap
from collections.abc import Mapping
from typing import Any

from recurrify.pages.statement import headline, live_sentence
from recurrify.pages.tables import WEIGHTS, Table, gain_table, score_table


def markdown(result: Mapping[str, Any]) -> str:
    """The statement and every table that `result` has rows for."""
    candidates = [score_table(result, weights) for weights in WEIGHTS]
    candidates.append(gain_table(result))
    parts = [f"{headline(result)}\n{live_sentence(result)}"]
    parts += [_render(table) for table in candidates if table is not None]
    return "\n\n".join(parts) + "\n"


def summary(result: Mapping[str, Any], width: int = 80) -> list[str]:
    """The statement and the gains as plain lines that fit a terminal."""
    lines = [*textwrap.wrap(headline(result), width), "", *textwrap.wrap(live_sentence(result), width)]
    table = gain_table(result)
    if table is None:
        return lines
    rows = _padded([table.header, *table.rows], table.text_columns)
    return [*lines, "", f"{table.caption}:", *("  ".join(row) for row in rows)]


def _render(table: Table) -> str:
    lines = [[cell.replace("|", "\\|") for cell in line] for line in [table.header, *table.rows]]
    padded = _padded(lines, table.text_columns)
    rule = [
        "-" * len(cell) if column < table.text_columns else "-" * (len(cell) - 1) + ":"
        for column, cell in enumerate(padded[0])
    ]
    return f"**{table.caption}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])


def _padded(lines: list[list[str]], text_columns: int) -> list[list[str]]:
    """Every column as wide as its widest cell: words to the left, numbers to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        [
            cell.ljust(width) if column < text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
