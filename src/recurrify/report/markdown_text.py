"""A demo result as Markdown whose tables are padded, so that it reads well in a terminal too."""

from collections.abc import Mapping
from typing import Any

from recurrify.report.statement import headline, live_sentence
from recurrify.report.tables import WEIGHTS, Table, gain_table, score_table


def markdown(result: Mapping[str, Any]) -> str:
    """The statement and every table that `result` has rows for."""
    candidates = [score_table(result, weights) for weights in WEIGHTS]
    candidates.append(gain_table(result))
    parts = [f"{headline(result)}\n{live_sentence(result)}"]
    parts += [_render(table) for table in candidates if table is not None]
    return "\n\n".join(parts) + "\n"


def _render(table: Table) -> str:
    lines = [[cell.replace("|", "\\|") for cell in line] for line in [table.header, *table.rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]
    rule = [
        "-" * width if column < table.text_columns else "-" * (width - 1) + ":" for column, width in enumerate(widths)
    ]
    padded = [
        [
            cell.ljust(width) if column < table.text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in [lines[0], rule, *lines[1:]]
    ]
    return f"**{table.caption}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in padded)
