"""`recurrify advise`: which reading of your text is the best buy."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from recurrify.cli import options
from recurrify.cli.names import formerly
from recurrify.console import busy, heartbeat, out_console, perplexity_level, progress_bar, say
from recurrify.errors import UserError
from recurrify.results import check_overwrites_nothing, provenance


@formerly(rows="batch")
def advise_command(
    model: options.ModelArgument,
    text: options.DataArgument = None,
    data: options.DataOrArgument = None,
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
    data = options.one_source(data, text)
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
        has_room,
        measure_readings,
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
    with progress_bar("measuring", advice_tokens(base, texts, memories)) as advance:
        bf16 = where.type == "cuda" and uses_bf16("auto")
        readings = measure_readings(base, texts, memories, rows=batch, bf16=bf16, progress=advance)
    advice = advise(readings, flops, None if state is None else state * 2**20)
    setting = advice.best.row.setting
    command = f"recurrify add --model {model} --window {setting.window} --out with-memory"
    if not advice.memory_pays:
        window: int | None = setting.window
        if setting.role == "whole pieces":  # their length says nothing about the model
            window = family_of(base.config).positions(base.config)
        windows = "" if window is None else f" --window {window} --overlap {setting.overlap}"
        command = f"recurrify evaluate {model} --data {data}{'' if split == 'test' else f' --split {split}'}{windows}"
    notes = []
    if advice.gain is not None and advice.gain.within_noise:
        notes.append(_more_text(len(texts) == pieces, split))
    if has_room(base, texts):
        longest = max(len(text.ids) for text in texts)
        notes.append(f"The sample's longest piece has {longest:,} tokens: longer windows were not measured.")
    with heartbeat(None):
        _print(*advice.sentences)
        _show(readings, advice.best)
        _print(*notes, f"Next: {command}")
    gains = []
    if advice.gain is not None and advice.rival is not None:
        rival = advice.rival.row.setting
        names = {"model": setting.role, "label": setting.label, "against": rival.role, "against_label": rival.label}
        gains.append({**names, "unit": "token", **asdict(advice.gain)})
    config = {"model": model, "data": data, "split": split, "flops": flops, "state": state}
    config |= {"pieces": pieces, "tokens": tokens}
    result = {
        "kind": "advice",
        "rows": [reading.to_dict() for reading in readings],
        "gains": gains,
        "advice": advice.sentences,
        "notes": notes,
        "command": command,
        "provenance": provenance(config, data_checksum=checksum(documents)),
    }
    write_results(result, out, page)


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


def _show(readings: Any, best: Any) -> None:
    table = Table(box=None, pad_edge=False, title="All readings (*: recommended)", title_justify="left")
    table.add_column("reading")
    for header in ("ppl/token", "bits/char", "FLOPs/token", "state, MiB"):
        table.add_column(header, justify="right", no_wrap=True)
    for one in readings:
        values = [perplexity_level(one.perplexity, 3), f"{one.row.evaluation.bits_per_character:.4f}"]
        label = f"{one.row.setting.label}{' *' if one is best else ''}"
        table.add_row(label, *values, f"{one.flops:.3g}", f"{one.state_bytes / 2**20:.3g}")
    out_console.print(table, soft_wrap=True)
