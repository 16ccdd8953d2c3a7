"""`recurrify advise`: which reading of your text is the best buy."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from recurrify.cli import options
from recurrify.cli.names import formerly
from recurrify.console import busy, heartbeat, large, out_console, perplexity_level, progress_bar, say
from recurrify.errors import UserError
from recurrify.results import check_overwrites_nothing, provenance

if TYPE_CHECKING:
    from recurrify.evaluate.advise import Advice, Reading


@formerly(rows="batch")
def advise_command(
    model: options.ModelArgument,
    data: options.Data,
    flops: Annotated[float | None, typer.Option(min=0, help="Budget: FLOPs per token, such as 3e8.")] = None,
    state: Annotated[
        float | None, typer.Option(min=0, help="Budget: MiB of state per text (window and memory).")
    ] = None,
    split: options.Split = "all",
    text_field: options.TextField = "text",
    pieces: Annotated[int, typer.Option(min=2, help="Pieces of text in the sample, of several documents if any.")] = 3,
    tokens: Annotated[int, typer.Option(min=32, help="Tokens of each piece, at most.")] = 2000,
    batch: options.Batch = 8,
    device: options.Device = "auto",
    out: options.ResultFile = None,
    page: Annotated[Path | None, typer.Option(help="Write the readings as this HTML page.")] = None,
) -> None:
    """Measure longer windows, overlap and an untrained memory on a sample of your text, and recommend one of them.

    All readings score the same tokens. Nothing is trained.
    """
    check_overwrites_nothing(out, data, model)
    options.check_page(page, data, model)
    options.check_device(device)
    options.load_libraries(model, texts=[data], split=split)
    from recurrify.cli.evaluate import write_results
    from recurrify.data import checksum, load_documents, pick_device
    from recurrify.evaluate.advise import (
        advice_tokens,
        advise,
        candidate_memories,
        check_budget,
        measure_readings,
        reading_costs,
        sample_pieces,
    )
    from recurrify.families import family_of
    from recurrify.modeling.loading import load_model
    from recurrify.train.loop import uses_bf16

    where = pick_device(device)
    with busy(f"loading {model}"):
        loaded, tokenizer = load_model(model, device=where)
    if loaded.mechanism is not None:
        raise UserError(f"{model!r} has a memory already: give its base, or score it with `recurrify evaluate`.")
    documents = load_documents(data, split, text_field=text_field, limit=10 * pieces)
    texts = sample_pieces(documents, tokenizer, pieces, tokens)
    count = "1 piece" if len(texts) == 1 else f"{len(texts)} pieces"
    say(f"{data} ({split}): {count}, {sum(len(text.ids) for text in texts):,} tokens")
    base = loaded.base.to(where)
    memories = candidate_memories(base, texts)
    state_bytes = None if state is None else state * 2**20
    check_budget(reading_costs(base, texts, memories).values(), flops, state_bytes)
    with progress_bar("measuring", advice_tokens(base, texts, memories)) as advance:
        bf16 = where.type == "cuda" and uses_bf16("auto")
        readings = measure_readings(base, texts, memories, rows=batch, bf16=bf16, progress=advance)
    advice = advise(readings, flops, state_bytes)
    notes = _notes(advice, readings, len(texts) == pieces, split)
    command = _next_command(advice, model, data, split, family_of(base.config).positions(base.config))
    with heartbeat(None):
        _print(*advice.sentences)
        _show(readings, advice.best)
        _print(*notes, f"Next: {command}")
    config = {"model": model, "data": data, "split": split, "flops": flops, "state": state}
    config |= {"pieces": pieces, "tokens": tokens}
    result = {
        "kind": "advice",
        "rows": [reading.to_dict() for reading in readings],
        "gains": _gains(advice),
        "advice": advice.sentences,
        "notes": notes,
        "command": command,
        "provenance": provenance(config, data_checksum=checksum(documents)),
    }
    write_results(result, out, page)


def _next_command(advice: "Advice", model: str, data: str, split: str, positions: int | None) -> str:
    """What to run next: adding the memory, or scoring the best reading of the base."""
    setting = advice.best.row.setting
    if advice.memory_pays:
        return f"recurrify add --model {model} --window {setting.window} --out with-memory"
    # The length of the sample says nothing about the model.
    window = positions if setting.role == "whole text" else setting.window
    windows = "" if window is None else f" --window {window} --overlap {setting.overlap}"
    return f"recurrify evaluate {model} --data {data} --split {split}{windows}"


def _notes(advice: "Advice", readings: Sequence["Reading"], more_is_left: bool, split: str) -> list[str]:
    """What the sample could not show."""
    found = []
    if advice.gain is not None and advice.gain.within_noise:
        found.append(_more_text(more_is_left, split))
    for one in readings:
        if one.row.setting.role == "whole text":
            length = one.row.setting.window
            found.append(f"The sample's longest piece has {length:,} tokens: longer windows were not measured.")
    return found


def _gains(advice: "Advice") -> list[dict[str, Any]]:
    """The gain over the strongest rival, as results have it."""
    if advice.gain is None or advice.rival is None:
        return []
    best, rival = advice.best.row.setting, advice.rival.row.setting
    names = {"model": best.role, "label": best.label, "against": rival.role, "against_label": rival.label}
    return [{**names, "unit": "token", **asdict(advice.gain)}]


def _more_text(is_left: bool, split: str) -> str:
    """How to get a narrower interval."""
    if is_left:
        return "A larger sample (--pieces, --tokens) may give a narrower interval."
    if split != "all":
        return f"The sample is all there is of the split {split!r}: --split all gives a larger one."
    return "The sample is the whole text: more pieces (a longer text, or a smaller --tokens) give a narrower interval."


def _print(*lines: str) -> None:
    for line in lines:
        out_console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show(readings: Sequence["Reading"], best: "Reading") -> None:
    table = Table(box=None, pad_edge=False, title="All readings (*: recommended)", title_justify="left")
    table.add_column("reading")
    for header in ("ppl/token", "bits/char", "FLOPs/token", "state, MiB"):
        table.add_column(header, justify="right", no_wrap=True)
    for one in readings:
        values = [perplexity_level(one.perplexity, 3), f"{one.row.evaluation.bits_per_character:.4f}"]
        label = f"{one.row.setting.label}{' *' if one is best else ''}"
        table.add_row(label, *values, large(one.cost.flops), f"{one.cost.state_bytes / 2**20:.3g}")
    out_console.print(table, soft_wrap=True)
