"""The page of an inspected text: coloured tokens, and what the recurrent model did with its memory."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from recurrify.pages import html_parts as parts
from recurrify.pages import inspect_plots, numbers, plots
from recurrify.pages.tables import Table
from recurrify.results import save_result, write_whole

PAGE_FILE, NUMBERS_FILE = "index.html", "inspection.json"
STEPS = (0.1, 0.3, 1.0, 3.0)
"""Differences of loss, in nats, from which a token's colour is one step stronger."""
LOSS_STEPS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""The same for a loss itself."""
VISIBLE = str.maketrans({"\n": "↵", "\t": "⇥", " ": "␣", "\r": "␍"})
WITHOUT_MEMORY = "This model runs in plain windows and carries nothing from one to the next."


def write_inspection(result: Mapping[str, Any], folder: Path) -> Path:
    """Write the page and, beside it, its numbers; returns the page's path."""
    save_result(folder / NUMBERS_FILE, result)
    body = [_opening(result), _difference(result), _attention(result), _gradients(result), _states(result)]
    body += [_side_by_side(result), _provenance(result)]
    page = parts.document(f"{result['model']} reads {result['document']}", body, wide=True)
    page = page.replace("</style>", STYLE + "</style>", 1)
    # A text may hold half of a surrogate pair, which no encoding can write.
    write_whole(folder / PAGE_FILE, page.encode("utf-8", errors="replace"))
    return folder / PAGE_FILE


def inspect_lines(result: Mapping[str, Any]) -> list[str]:
    """The page in a few lines, for the terminal and for its own opening."""
    plain, recurrent = (_scored(result, model) for model in ("plain", "recurrent"))
    lines = [
        f"{len(recurrent):,} tokens scored in {_windows(len(result['windows']))}: mean loss {fmean(plain):.3f} plain, "
        f"{fmean(recurrent):.3f} recurrent ({_signed(fmean(recurrent) - fmean(plain))}); "
        f"perplexity per token {_perplexity(plain)} and {_perplexity(recurrent)}."
    ]
    differences = [mine - theirs for mine, theirs in zip(recurrent, plain, strict=True)]
    better, worse = (sum(sign * value >= STEPS[0] for value in differences) for sign in (-1, 1))
    lines.append(
        f"Recurrence is better by {STEPS[0]} nats or more on {better:,} tokens, and worse on {worse:,}; "
        f"the others differ by less."
    )
    attention = result["slot_attention"]
    if attention is not None:
        mass = [value for _, value in inspect_plots.mean_by_position(attention["mass"])]
        layers = attention["layers"]
        slots = f"layers {layers[0]} to {layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}"
        lines.append(
            f"Where there is a memory, {numbers.percent(fmean(mass))} of the attention of {slots} is on it; "
            f"at a window's first position {numbers.percent(mass[0])}."
        )
    lines.append(_gradient_sentence(result["gradients"]["mean"]))
    return lines


def _gradient_sentence(mean: Sequence[float]) -> str:
    if len(mean) < 2:
        return "The text is one window long: no loss could depend on an earlier one."
    if not mean[1]:
        return "No gradient goes from a window's loss to the window before."
    share = f"{mean[1] / mean[0]:.2g}"
    return f"At the inputs of the window before, the gradient of a window's loss is {share} times that at its own."


def _scored(result: Mapping[str, Any], model: str) -> list[float]:
    return [float(loss) for loss in result["tokens"][model] if loss is not None]


def _perplexity(losses: Sequence[float]) -> str:
    mean = fmean(losses)
    return numbers.perplexity(math.exp(mean)) if mean < 700 else "∞"


def _windows(count: int) -> str:
    return "1 window" if count == 1 else f"{count:,} windows"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _opening(result: Mapping[str, Any]) -> str:
    recurrence = result["recurrence"]
    plain = f"{result['plain']}, in the same windows" if result["plain"] else "the same base in plain windows"
    overlap = f", {recurrence['overlap']} of them shared with the window before" if recurrence["overlap"] else ""
    setting = (
        f"Recurrent: {result['model']} (mechanism {result['mechanism']}), windows of {recurrence['window']} tokens"
        f"{overlap}. Plain: {plain}. Losses are in nats per token."
    )
    first, *more = inspect_lines(result)
    texts = [
        parts.paragraph(setting),
        parts.paragraph(first, "headline"),
        parts.bullets([parts.text(one) for one in more]),
    ]
    if result["mechanism"] == "none":
        texts.insert(1, parts.paragraph(WITHOUT_MEMORY, "warning"))
    numbers_link = parts.link(parts.Link("inspection.json", "inspection.json", NUMBERS_FILE))
    return "\n".join([*texts, f'<p class="note">All numbers: {numbers_link}.</p>'])


# ---- the text ------------------------------------------------------------------------------------------


def _difference(result: Mapping[str, Any]) -> str:
    windows = []
    for number, window in enumerate(result["windows"], start=1):
        change = _signed(window["recurrent"] - window["plain"])
        label = f"window {number}: plain {window['plain']:.2f}, recurrent {window['recurrent']:.2f} ({change})"
        windows.append(_window(result, number, window, label, _difference_class))
    keys = [
        _key(f"{model} better by", [(f"t {css}{step}", name) for step, name in enumerate(_ranges(STEPS), start=1)])
        for model, css in (("Recurrent", "g"), ("Plain", "w"))
    ]
    note = (
        "Colour is the difference of the two losses, in nats; uncoloured tokens differ by less than 0.1. Point at a "
        "token, or tap it, to see both losses. Numbered lines mark where windows begin."
    )
    return parts.section(
        "Where memory helps", [*keys, parts.paragraph(note, "note"), _reading("Difference by token", windows)]
    )


def _side_by_side(result: Mapping[str, Any]) -> str:
    rows = []
    for number, window in enumerate(result["windows"], start=1):
        labels = {model: f"window {number}, {model}: {window[model]:.2f}" for model in ("plain", "recurrent")}
        sides = [_window(result, number, window, label, _loss_class(model)) for model, label in labels.items()]
        rows.append(f'<div class="sides"><div>{sides[0]}</div><div>{sides[1]}</div></div>')
    names = [f"below {LOSS_STEPS[0]:g}", *_ranges(LOSS_STEPS)]
    key = _key("Loss", [(f"t l{step}", name) for step, name in enumerate(names)])
    note = "The same text twice, coloured by each model's own loss: the stronger the colour, the greater the surprise."
    content = [key, parts.paragraph(note, "note"), _reading("Loss by token, plain and recurrent side by side", rows)]
    return parts.section("Both models side by side", content)


def _ranges(steps: Sequence[float]) -> list[str]:
    return [*(f"{low:g} to {high:g}" for low, high in pairwise(steps)), f"{steps[-1]:g} or more"]


def _key(title: str, entries: Sequence[tuple[str, str]]) -> str:
    marks = " ".join(f'<span class="{css}">{parts.text(name)}</span>' for css, name in entries)
    return f'<p class="key">{parts.text(title)}: {marks}</p>'


def _reading(label: str, content: Sequence[str]) -> str:
    inner = "\n".join(content)
    return f'<div class="reading" role="region" tabindex="0" aria-label="{parts.text(label)}">\n{inner}\n</div>'


Colour = Callable[[float | None, float | None], str]
"""From a token's plain and recurrent loss to its class."""


def _difference_class(plain: float | None, recurrent: float | None) -> str:
    if plain is None or recurrent is None:
        return "t"
    step = sum(abs(recurrent - plain) >= least for least in STEPS)
    return "t" if not step else f"t g{step}" if recurrent < plain else f"t w{step}"


def _loss_class(model: str) -> Colour:
    def colour(plain: float | None, recurrent: float | None) -> str:
        loss = plain if model == "plain" else recurrent
        return "t" if loss is None else f"t l{sum(loss >= least for least in LOSS_STEPS)}"

    return colour


def _window(result: Mapping[str, Any], number: int, window: Mapping[str, Any], label: str, colour: Colour) -> str:
    """The tokens that a window predicts, under a line with its number; the text's first is predicted by none."""
    tokens = result["tokens"]
    first = 0 if number == 1 else window["first"]
    spans = []
    for place in range(first, window["stop"]):
        text, plain, recurrent = tokens["text"][place], tokens["plain"][place], tokens["recurrent"][place]
        css = colour(plain, recurrent) + (" n" if "\n" in text else "") + ("" if text else " e")
        tip = parts.text(_tip(text, plain, recurrent))
        spans.append(f'<span class="{css}" tabindex="-1" data-tip="{tip}">{parts.text(text)}</span>')
    # A line feed right behind the tag would be swallowed.
    return f'<p class="border">{parts.text(label)}</p><pre>\n{"".join(spans)}</pre>'


def _tip(text: str, plain: float | None, recurrent: float | None) -> str:
    shown = text.translate(VISIBLE) or "(rest of a character)"
    if plain is None or recurrent is None:
        return f"{shown}   first token: nothing predicts it"
    return f"{shown}   plain {plain:.2f}, recurrent {recurrent:.2f} ({_signed(recurrent - plain)})"


# ---- the memory ----------------------------------------------------------------------------------------


def _figures(*figures: tuple[plots.Draw, Any, str, str, str, float]) -> str:
    drawn = []
    for draw, data, name, description, caption, height in figures:
        svg = plots.svg(draw, data, name, height)
        if svg is not None:
            drawn.append(parts.figure(svg, description, caption))
    return "\n".join(drawn)


def _attention(result: Mapping[str, Any]) -> str:
    attention, title = result["slot_attention"], "How much attention memory gets"
    if attention is None:
        return parts.section(title, [parts.paragraph(_why_no_slots(result))])
    layers, mass = attention["layers"], attention["mass"]
    known = inspect_plots.mean_by_position(mass)
    places = [position for position, _ in known]
    rows = []
    for layer, slots, row in zip(layers, attention["slots"], mass, strict=True):
        even = fmean(inspect_plots.even_share([slots], place + 1) for place in places)
        shares = [fmean(row[place] for place in places), row[places[0]], row[places[-1]], even]
        rows.append([str(layer), str(slots), *(numbers.percent(share) for share in shares)])
    header = ["layer", "slots", "mean", "first position", "last position", "if even"]
    means = f"Mean over {_windows(attention['windows'])} with a memory and all heads"
    described = (
        f"From {numbers.percent(known[0][1])} at the first position to {numbers.percent(known[-1][1])} at the last."
    )
    figures = _figures(
        (
            inspect_plots.draw_attention,
            attention,
            "attention",
            f"Line plot of the share of attention on the slots by position. {described}",
            f"{means}{' of the layers that see slots' if len(layers) > 1 else ''}.",
            3.7,
        ),
        (
            inspect_plots.draw_attention_map,
            attention,
            "layers",
            "Map of the share of attention on the slots by layer and position; the table has the means.",
            f"{means}. The stronger the colour, the more.",
            min(1.8 + 0.25 * len(layers), 6.0),
        ),
    )
    table = parts.table(Table("Share of attention on the slots, by layer", header, rows, text_columns=1))
    return parts.section(title, [f'<div class="plots">\n{figures}\n<div>{table}</div>\n</div>'])


def _why_no_slots(result: Mapping[str, Any]) -> str:
    if result["mechanism"] == "none":
        return f"{WITHOUT_MEMORY} There is nothing to attend to."
    if not result["states"]["norm"] or len(result["windows"]) < 2:
        return "The text ends with its first window, before there is a memory: take a longer one, or more --tokens."
    return (
        f"The mechanism {result['mechanism']!r} has no slots: what it remembers is not attended to but added to the "
        "layers' inputs. The gradients below show whether it is used."
    )


def _gradients(result: Mapping[str, Any]) -> str:
    gradients = result["gradients"]
    mean = gradients["mean"]
    rows = [[str(back), f"{value:.3g}", _relative(value, mean[0])] for back, value in enumerate(mean)]
    note = (
        "Norm of the gradient of a window's mean loss at the input embeddings of the window so many before: how much "
        f"the loss would move if that text were a little different. Mean over {_windows(len(gradients['windows']))}; "
        "faint lines: each of them."
    )
    described = "; ".join(f"{back} back: {value:.3g}" for back, value in enumerate(mean))
    figure = _figures(
        (inspect_plots.draw_gradients, gradients, "gradients", f"Line plot on a log scale. {described}.", note, 3.7)
    )
    header = ["windows back", "norm of the gradient", "relative to its own"]
    table = parts.table(Table("Gradient of a window's loss", header, rows, text_columns=1))
    content = f'<div class="plots">\n{figure}\n<div>{table}</div>\n</div>'
    return parts.section("What was used of earlier windows", [content])


def _relative(value: float, to: float) -> str:
    """A percentage that may be far below one."""
    if not to:
        return numbers.MISSING
    share = value / to
    if 0 < share < 1e-5:
        return "< 0.001 %"
    return numbers.percent(share) if share >= 0.001 or not share else f"{100 * share:.1g} %"


def _states(result: Mapping[str, Any]) -> str:
    states, title = result["states"], "How the memory moves"
    if not states["norm"]:
        reason = (
            WITHOUT_MEMORY if result["mechanism"] == "none" else "The text fills no window, so nothing was written."
        )
        return parts.section(title, [parts.paragraph(reason)])
    changes = [change for change in states["change"] if change is not None]
    moved = f", the change from window to window {fmean(changes):.3g}" if changes else ""
    described = f"Line plot of norms by window. The memory's is {fmean(states['norm']):.3g} on average{moved}."
    note = (
        "Norm of all the numbers that a window leaves to the next, and of their difference from those before. A memory "
        "that hardly changes says little about its text."
    )
    return parts.section(title, [_figures((inspect_plots.draw_states, states, "states", described, note, 3.7))])


def _provenance(result: Mapping[str, Any]) -> str:
    facts = json.dumps(result["provenance"], indent=2, ensure_ascii=False, default=str)
    return parts.details("Provenance: everything these numbers may depend on", parts.code_block(facts))


def _mixes(names: str, colour: str, shares: Sequence[int]) -> str:
    return "\n".join(
        f".{names}{step} {{ background: color-mix(in srgb, var(--{colour}) {share}%, transparent); }}"
        for step, share in enumerate(shares, start=1)
    )


def _bars(names: str, colour: str, shares: Sequence[int]) -> str:
    """A bar below tells two scales apart without any colour."""
    return "\n".join(
        f".{names}{step} {{ box-shadow: inset 0 -2px 0 color-mix(in srgb, var(--{colour}) {share}%, transparent); }}"
        for step, share in enumerate(shares, start=1)
    )


STYLE = f"""
{_mixes("g", "recurrent", (12, 22, 34, 46))}
{_mixes("w", "plain", (12, 22, 34, 46))}
{_bars("w", "plain", (30, 50, 75, 100))}
{_mixes("l", "best", (9, 18, 27, 37, 47))}
.reading {{
  max-height: 34rem; overflow-y: auto; padding: 0 0.75rem 0.5rem;
  background: var(--panel); border: 1px solid var(--grid); border-radius: 4px;
}}
.reading pre {{ padding: 0; border: 0; background: none; line-height: 1.7; }}
.border {{
  max-width: none; margin: 0.75rem 0 0.25rem; padding-top: 0.25rem; border-top: 1px dashed var(--muted);
  color: var(--muted); font-size: 0.8rem; font-variant-numeric: tabular-nums;
}}
.reading > .border:first-child, .reading > .sides:first-child .border {{ border-top: 0; }}
.key {{ font-size: 0.9rem; line-height: 1.9; }}
.key .t {{ padding: 0.1rem 0.4rem; border-radius: 3px; white-space: nowrap; }}
.n::before {{ content: "↵"; color: var(--muted); }}
.e::before {{ content: "·"; color: var(--muted); }}
pre .t:is(:hover, :focus) {{ outline: 2px solid var(--ink); outline-offset: 0; }}
pre .t:is(:hover, :focus)::after {{
  content: attr(data-tip); position: fixed; inset: auto 0 0 0; z-index: 1; padding: 0.6rem 1rem;
  background: var(--ink); color: var(--paper); font-size: 0.95rem; line-height: 1.4; text-align: center;
}}
pre .t:hover::after {{ z-index: 2; }}
"""
