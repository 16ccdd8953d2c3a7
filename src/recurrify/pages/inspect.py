"""The page of `recurrify inspect`: a text token by token, with and without memory, and what the memory did."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from recurrify.mechanisms.config import NO_MEMORY
from recurrify.pages import numbers
from recurrify.pages.charts import line_chart
from recurrify.pages.findings import Gain
from recurrify.pages.page import (
    Block,
    Chart,
    Column,
    Link,
    Page,
    Section,
    Table,
    Text,
    Verdict,
    write_page,
)
from recurrify.results import save_result

PAGE_FILE, NUMBERS_FILE = "index.html", "inspection.json"
NOTABLE = 0.1
"""Nats from which the losses of a token are said to differ."""
WITHOUT_MEMORY = "This model runs in plain windows and carries nothing from one to the next."
Result = Mapping[str, Any]


def write_inspection(result: Result, folder: Path) -> Path:
    """Write the page and, next to it, its numbers; returns the page's path."""
    save_result(folder / NUMBERS_FILE, result)
    blocks: list[Block] = [Text(_setting(result))]
    if result["mechanism"] == NO_MEMORY:
        blocks.append(Text(WITHOUT_MEMORY, "warning"))
    blocks += [
        Section("Token by token", [Reader.of(result)]),
        Section("Attention to the memory", _attention(result)),
        Section("What a window's loss depends on", _gradients(result)),
        Section("How the memory changes", _states(result)),
        Text(["All numbers: ", Link(NUMBERS_FILE, NUMBERS_FILE), "."], "note"),
    ]
    title = f"{result['model']} reads {result['document']}"
    page = Page(title, inspect_verdict(result), blocks, _window_chart(result), result.get("provenance") or {})
    write_page(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def inspect_verdict(result: Result) -> Verdict:
    """The change of perplexity on this text, with an interval that resamples windows."""
    gain = _gain(result)
    better, worse = _differing(result)
    facts = [("without memory", _perplexity(_scored(result, "plain")))]
    facts.append(("with memory", _perplexity(_scored(result, "recurrent"))))
    if "full context" in result["tokens"]:
        facts.append(("base, full context", _perplexity(_scored(result, "full context"))))
    facts += [("tokens better", numbers.count(better)), ("tokens worse", numbers.count(worse))]
    if (cost := numbers.finite((result.get("memory") or {}).get("extra_share"))) is not None:
        facts.append(("cost", f"{numbers.percent(cost, signed=True)} FLOPs"))
    interval = gain.interval_text.replace("one document", "one window")
    plain = _plain_name(result)
    return Verdict(gain.sentence("The memory", plain), gain.number, gain.what(plain), interval, facts, gain.tone)


def inspect_lines(result: Result) -> list[str]:
    """The findings in a few lines, for the terminal."""
    plain, recurrent = (fmean(_scored(result, name)) for name in ("plain", "recurrent"))
    better, worse = _differing(result)
    count, windows = len(_scored(result, "recurrent")), _windows(len(result["windows"]))
    lines = [
        f"{count:,} tokens scored in {windows}: mean loss {plain:.3f} "
        f"plain, {recurrent:.3f} with memory ({numbers.fixed(recurrent - plain, signed=True)}); perplexity per token "
        f"{_perplexity(_scored(result, 'plain'))} and {_perplexity(_scored(result, 'recurrent'))}.",
        f"Memory is better by {NOTABLE} nats or more on {better:,} tokens and worse on {worse:,}.",
    ]
    if (attention := result["slot_attention"]) is not None:
        mass = [value for _, value in mean_by_position(attention["mass"])]
        lines.append(
            f"On average a token puts {numbers.percent(fmean(mass))} of its attention on the memory; the first token "
            f"of a window puts {numbers.percent(mass[0])} of its own there."
        )
    return [*lines, _gradient_sentence(result["gradients"]["mean"])]


def _gradient_sentence(mean: Sequence[float]) -> str:
    if len(mean) < 2:
        return "The text is one window long: no loss can depend on an earlier one."
    if not mean[1]:
        return "No gradient flows from a window's loss to the previous window."
    share = f"{mean[1] / mean[0]:.2g}"
    return f"The gradient of a window's loss at the previous window's inputs is {share} times that at its own inputs."


def _setting(result: Result) -> str:
    recurrence = result["recurrence"]
    overlap = f", overlap {recurrence['overlap']}" if recurrence["overlap"] else ""
    return (
        f"With memory: {result['model']} (mechanism {result['mechanism']}), windows of {recurrence['window']} tokens"
        f"{overlap}. Compared with {_plain_name(result)}. Losses are in nats per token."
    )


def _plain_name(result: Result) -> str:
    return f"{result['plain']} in the same windows" if result["plain"] else "the same base in plain windows"


def _scored(result: Result, reading: str) -> list[float]:
    return [float(loss) for loss in result["tokens"][reading] if loss is not None]


def _perplexity(losses: Sequence[float]) -> str:
    mean = fmean(losses)
    return numbers.perplexity(math.exp(mean)) if mean < 700 else "∞"


def _windows(count: int) -> str:
    return "1 window" if count == 1 else f"{count:,} windows"


def _differing(result: Result) -> tuple[int, int]:
    """On how many tokens memory is better, and worse, by what is worth mentioning."""
    pairs = zip(_scored(result, "recurrent"), _scored(result, "plain"), strict=True)
    differences = [mine - theirs for mine, theirs in pairs]
    return sum(value <= -NOTABLE for value in differences), sum(value >= NOTABLE for value in differences)


def _gain(result: Result, samples: int = 1000) -> Gain:
    """The drop of perplexity, and its interval: windows drawn with replacement, the same for both readings."""
    sums = []
    for window in result["windows"]:
        count = window["stop"] - window["first"]
        sums.append((count * (window["recurrent"] - window["plain"]), count))

    def drop(chosen: Sequence[tuple[float, int]]) -> float:
        mean = sum(value for value, _ in chosen) / sum(count for _, count in chosen)
        return 1 - math.exp(min(mean, 700.0))

    interval = None
    if len(sums) > 1:
        chance = random.Random(0)
        drawn = sorted(drop(chance.choices(sums, k=len(sums))) for _ in range(samples))
        interval = (drawn[round(0.025 * samples)], drawn[round(0.975 * samples) - 1])
    return Gain(drop(sums), interval, interval is None or interval[0] <= 0 <= interval[1])


@dataclass(frozen=True)
class Reader(Block):
    """The text, window by window: hover a token to see its losses and where attention went."""

    template: ClassVar[str] = "reader.html.j2"
    data: Mapping[str, Any]
    readings: Sequence[tuple[str, str]]
    """Keys and names of the readings that can be compared."""
    windows: int

    @classmethod
    def of(cls, result: Result) -> "Reader":
        """From a result: every list next to `text` in its `tokens` is a reading."""
        tokens, attention = result["tokens"], result["slot_attention"] or {}
        names = {"plain": "without memory", "recurrent": "with memory", "full context": "base, full context"}
        names |= result.get("names") or {}
        keys = [key for key in tokens if key != "text"]
        data = {
            # Half of a surrogate pair is no text that a browser can show.
            "text": [str(piece).encode("utf-8", "replace").decode() for piece in tokens["text"]],
            "readings": {key: _rounded(tokens[key]) for key in keys},
            "windows": [[window["first"], window["stop"]] for window in result["windows"]],
            "layers": attention.get("layers") or [],
            "attention": _rounded(attention.get("by_token") or []),
            "places": _rounded(attention.get("places") or []),
        }
        return cls(data, [(key, str(names.get(key, key))) for key in keys], len(result["windows"]))


def _rounded(values: Any) -> Any:
    """Numbers with three digits, what is not finite as None."""
    if isinstance(values, list | tuple):
        return [_rounded(value) for value in values]
    found = numbers.finite(values)
    return None if found is None else round(found, 3)


def _window_chart(result: Result) -> Chart:
    names = {"plain": "without memory", "recurrent": "with memory"}
    records = [
        {"window": number, "loss": window[key], "reading": name}
        for key, name in reversed(names.items())
        for number, window in enumerate(result["windows"], start=1)
    ]
    return line_chart(
        records,
        x="window",
        y="loss",
        series="reading",
        title="Mean loss by window",
        y_title="loss (nats per token)",
        points=len(result["windows"]) < 40,
        description="Mean loss by window, with and without memory.",
        caption="Lower is better. The first window has no memory yet.",
    )


def _attention(result: Result) -> list[Block]:
    attention = result["slot_attention"]
    if attention is None:
        return [Text(_why_no_slots(result))]
    layers, mass, slots = attention["layers"], attention["mass"], attention["slots"]
    known = mean_by_position(mass)
    places = [position for position, _ in known]
    records = [{"position": place + 1, "share": share, "attention": "measured"} for place, share in known]
    records += [
        {"position": place + 1, "share": even_share(slots, place + 1), "attention": "if attention were even"}
        for place in places
    ]
    first, last = numbers.percent(known[0][1]), numbers.percent(known[-1][1])
    chart = line_chart(
        records,
        x="position",
        y="share",
        series="attention",
        title="Share of attention on the memory",
        x_title="position in the window",
        y_title="share of attention",
        y_format=".3~%",
        y_from_zero=True,
        description=f"{first} at the first position, {last} at the last.",
        caption=f"Mean over {_windows(attention['windows'])} with a memory and all heads.",
    )
    rows = []
    for layer, count, row in zip(layers, slots, mass, strict=True):
        even = fmean(even_share([count], place + 1) for place in places)
        rows.append([str(layer), count, fmean(row[place] for place in places), row[places[0]], row[places[-1]], even])
    columns: list[str | Column] = ["layer", Column("slots", numbers.count)]
    columns += [Column(name, numbers.percent) for name in ("mean", "first position", "last position", "if even")]
    table = Table("Share of attention on the memory, by layer", columns, rows)
    return [chart, table]


def _why_no_slots(result: Result) -> str:
    if result["mechanism"] == NO_MEMORY:
        return f"{WITHOUT_MEMORY} There is nothing to attend to."
    if not result["states"]["norm"] or len(result["windows"]) < 2:
        return "The text ends with its first window, before there is a memory: use a longer one, or more --tokens."
    return (
        f"The mechanism {result['mechanism']!r} has no slots: its memory is added to the layers' inputs, not attended "
        "to. The gradients below show whether it is used."
    )


def _gradients(result: Result) -> list[Block]:
    gradients = result["gradients"]
    mean = gradients["mean"]
    own = mean[0] or math.nan
    rows = [[str(back), value, value / own] for back, value in enumerate(mean)]
    columns: list[str | Column] = [
        "windows back",
        Column("gradient norm", lambda value: f"{value:.3g}"),
        Column("relative", _small_share),
    ]
    table = Table("Gradient of a window's loss", columns, rows)
    records = [{"windows back": back, "gradient norm": value} for back, value in enumerate(mean) if value]
    note = (
        "Norm of the gradient of a window's mean loss at the input embeddings of an earlier window: how much the loss "
        f"would change if that text were slightly different. Mean over {_windows(len(gradients['windows']))}."
    )
    if not records:
        return [Text(note, "note"), table]
    chart = line_chart(
        records,
        x="windows back",
        y="gradient norm",
        title="Gradient by distance",
        x_title="windows back (0: the window itself)",
        y_scale="log",
        y_format=".1~e",
        x_ticks=list(range(len(mean))),
        points=True,
        description="; ".join(f"{back} back: {value:.3g}" for back, value in enumerate(mean)),
        caption=note,
    )
    return [Text(_gradient_sentence(mean)), chart, table]


def _small_share(share: float) -> str:
    """A percentage that may be far below one."""
    if math.isnan(share):
        return numbers.MISSING
    if 0 < share < 1e-5:
        return "< 0.001 %"
    return numbers.percent(share) if share >= 0.001 or not share else f"{100 * share:.1g} %"


def _states(result: Result) -> list[Block]:
    states = result["states"]
    if not states["norm"]:
        none = result["mechanism"] == NO_MEMORY
        return [Text(WITHOUT_MEMORY if none else "The text fills no window, so nothing was written.")]
    lines = {"memory": states["norm"], "change since the previous window": states["change"]}
    records = [
        {"window": window, "norm": value, "of": name}
        for name, values in lines.items()
        for window, value in enumerate(values, start=1)
    ]
    changes = [change for change in states["change"] if change is not None]
    moved = f"; the change from window to window is {fmean(changes):.3g}" if changes else ""
    return [
        line_chart(
            records,
            x="window",
            y="norm",
            series="of",
            title="Norm of the memory",
            x_title="after window",
            y_from_zero=True,
            description=f"The memory's norm is {fmean(states['norm']):.3g} on average{moved}.",
            caption="A memory that hardly changes says little about its text.",
        )
    ]


def mean_by_position(mass: Sequence[Sequence[Any]]) -> list[tuple[int, float]]:
    """The mean over layers of each position that has numbers."""
    return [
        (position, fmean(column))
        for position, column in enumerate(zip(*mass, strict=True))
        if all(numbers.finite(value) is not None for value in column)
    ]


def even_share(slots: Sequence[int], seen: int) -> float:
    """The share of even attention that `slots` get from a token that sees `seen` of its window: mean over layers."""
    return fmean(count / (count + seen) for count in slots)
