"""The page `recurrify demo` ends with: one HTML file that needs nothing beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrify.pages import html_parts as parts
from recurrify.pages import numbers, plots
from recurrify.pages.statement import headline, live_sentence, what_was_done
from recurrify.pages.tables import Table, gain_table, gains, score_table
from recurrify.results import write_whole

TITLE = "recurrify demo: recurrence between windows of text"

TERMS = [
    (
        "base, plain, recurrent",
        "the model before fine-tuning; fine-tuned as it is; fine-tuned with recurrence.",
    ),
    (
        "overlap",
        "how many tokens of the window before are read again, unscored, as context at each window's start. All models "
        "here were fine-tuned without overlap; with one, only which positions are remembered changes.",
    ),
    (
        "perplexity per word",
        "exp of the summed loss over the number of words between blanks, so tokenisers can be compared; words of "
        "source code are long, which makes these numbers large.",
    ),
    ("perplexity per token", "the same over the number of the model's own tokens."),
    ("bits per character", "the same loss in bits, over the number of characters."),
    (
        "FLOPs per token",
        "all matrix products: body, attention, output head and whatever recurrence adds, times T / (T − o), "
        "window T and overlap o.",
    ),
    (
        "gain",
        "the relative drop of perplexity from the plain to the recurrent model at the same overlap.",
    ),
]


def write_page(result: Mapping[str, Any], path: str | Path) -> None:
    """Write the page for `result`; a section whose data is missing is left out."""
    body = [
        _opening(result),
        _scores(result),
        _gains(result),
        _plots(result),
        _continuations(result),
        _provenance(result),
    ]
    # A generated text may hold half of a surrogate pair, which no encoding can write.
    write_whole(path, parts.document(TITLE, body).encode("utf-8", errors="replace"))


def _opening(result: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            parts.paragraph(what_was_done(result)),
            parts.paragraph(headline(result), "headline"),
            parts.paragraph(live_sentence(result)),
        ]
    )


def _scores(result: Mapping[str, Any]) -> str:
    shipped, live = score_table(result, "shipped"), score_table(result, "live")
    if shipped is None and live is None:
        return ""
    content = [parts.terms(TERMS)]
    if shipped is not None:
        content += [parts.table(shipped), _how_shipped(result)]
    if live is not None:
        content += [parts.table(live), parts.paragraph(_how_live(result), "note")]
    return parts.section("Perplexity and cost at each overlap", content)


def _how_shipped(result: Mapping[str, Any]) -> str:
    note = "Trained longer, beforehand"
    command = result.get("made_by")
    made_by = f", by <code>{parts.text(command)}</code>" if command else ""
    return f'<p class="note">{note}{made_by}; scored just now. Intervals resample the test documents.</p>'


def _how_live(result: Mapping[str, Any]) -> str:
    tokens = (result.get("settings") or {}).get("live_tokens")
    length = "" if tokens is None else f" on {numbers.count(tokens)} tokens"
    return f"Trained during this run{length}."


def _gains(result: Mapping[str, Any]) -> str:
    table = gain_table(result)
    if table is None:
        return ""
    note = "Intervals come from a paired bootstrap over documents, and over seeds where there are several."
    if any(gain.seeds == 1 for gain in gains(result)):
        note += " With one seed they do not cover the chance in training."
    if any(gain.seeds == 2 for gain in gains(result)):
        note += " Two seeds, compared seed by seed on the same batches, cover little of it."
    return parts.section("What recurrence gains", [parts.table(table), parts.paragraph(note, "note")])


def _plots(result: Mapping[str, Any]) -> str:
    wanted = [
        (
            "position",
            plots.draw_loss_by_position,
            plots.describe_loss_by_position(result),
            "Lower is better. At its start a window has little context of its own: there memory can help. "
            "Faint lines: the live pair.",
        ),
        (
            "flops",
            plots.draw_perplexity_by_flops,
            plots.describe_perplexity_by_flops(result),
            "Lower and further left is better. Labels give the overlap o; more overlap costs more.",
        ),
        (
            "curves",
            plots.draw_curves,
            plots.describe_curves(result),
            "Training loss of the pair trained during this run.",
        ),
    ]
    figures = []
    for name, draw, description, caption in wanted:
        svg = plots.svg(draw, result, name)
        if svg is not None:
            figures.append(parts.figure(svg, description, caption))
    if not figures:
        return ""
    return parts.section("Plots", ['<div class="plots">', *figures, "</div>"])


def _continuations(result: Mapping[str, Any]) -> str:
    content = []
    for number, sample in enumerate(result.get("continuations") or [], start=1):
        sides = [
            _titled_code("what the file says next", sample.get("truth")),
            _titled_code("plain model", sample.get("plain")),
            _titled_code("recurrent model", sample.get("recurrent")),
        ]
        content += [
            f"<h3>Sample {number}</h3>",
            _titled_code("end of the prompt", sample.get("prompt_end")),
            '<div class="sides">',
            *sides,
            "</div>",
        ]
    return parts.section("Continuations side by side", content)


def _titled_code(title: str, code: str | None) -> str:
    return "" if code is None else f"<div>\n<h4>{title}</h4>\n{parts.code_block(code)}\n</div>"


def _provenance(result: Mapping[str, Any]) -> str:
    tables = []
    for key, caption in (("settings", "Settings"), ("provenance", "Code, data, machine")):
        facts = _flat(result.get(key) or {})
        rows = [[name, _shown(value)] for name, value in facts.items()]
        if rows:
            tables.append(parts.table(Table(caption, ["what", "value"], rows, text_columns=2)))
    return parts.details("Provenance: everything these numbers may depend on", "\n".join(tables)) if tables else ""


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Nested facts side by side under readable names; what is not known is left out."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        name = str(key).replace("_", " ")
        if isinstance(value, Mapping):
            flat |= {f"{name}: {inner}": item for inner, item in _flat(value).items()}
        elif value is not None:
            flat[name] = value
    return flat


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
