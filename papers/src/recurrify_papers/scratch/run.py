"""A training run from scratch: from a text source to a model with its scores in a folder."""

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recurrify import UserError
from recurrify.console import progress_bar
from recurrify.data import Say, pick_device
from recurrify.records import MODEL_FOLDER, RESULT_FILE
from recurrify.results import full_disk_explained, provenance, save_result
from recurrify.speed import leave_out_cudnn
from recurrify.train import earlier_result
from recurrify_papers.models.language import (
    architecture_name,
    count_parameters,
    is_language_model,
    language_model,
    load_language_model,
    remembered_positions,
    save_language_model,
)
from recurrify_papers.scratch.rows import BatchRows, Score, score_rows
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import chosen_speed, matmul_context, precision_context, uses_half
from recurrify_papers.scratch.symbols import SymbolData, SymbolStream, encode_part, load_symbols, read_symbols
from recurrify_papers.scratch.training import ScratchOutcome, fit


def train_scratch(settings: ScratchSettings, say: Say) -> dict[str, Any]:
    """Train a model and write it, with its result, to `settings.out`. A run that was stopped there resumes.

    Returns:
        The result. After a stop, `finished` is false and there are no scores.
    """
    out, started = Path(settings.out), time.time()
    device = pick_device()
    speed = chosen_speed(settings, device)  # fails before the text is read
    uses_half(settings.precision, device)
    data = read_symbols(settings.symbols, settings.data, valid=settings.valid, text_field=settings.text_field, say=say)
    settings = replace(settings, data_checksum=data.checksum, held_out_checksum=data.held_out_checksum)
    model = new_model(settings, settings.model_settings, data.symbols.size).to(device)
    evaluated = _evaluated_model(settings, model)
    streams_T = {part: torch.from_numpy(stream.ids).to(device) for part, stream in data.streams.items()}
    rows = BatchRows(streams_T["train"], settings.batch, settings.length)  # fails if the text is too short
    earlier = earlier_result(settings, say)
    if earlier is not None:
        return earlier
    settings.write()
    leave_out_cudnn()
    say(_describe(settings, model, data))
    valid_T = streams_T["valid"][: settings.valid_tokens]
    try:
        with (
            full_disk_explained(settings.out),
            matmul_context(settings.precision, device),
            progress_bar("training", settings.steps, "steps") as tick,
        ):
            outcome = fit(
                model,
                rows,
                settings,
                validate=lambda _, watch: _score(evaluated, valid_T, settings, watch)[0],
                folder=out,
                on_validation=lambda entry: say(_describe_validation(entry, data.symbols.unit)),
                on_steps=tick,
            )
        result = _result(settings, model, data, outcome)
        if outcome.speed != speed and outcome.finished:
            say(f"note: steps ran eagerly, not with {speed}: the shape of the state changes through the whole epoch")
        if not outcome.finished:
            say(f"stopped after step {outcome.progress.step:,}: run the same command to resume from the checkpoint")
            return result
        # Before the scoring, which may take long: stopping it loses no model.
        with full_disk_explained(settings.out):
            data.symbols.save(out / MODEL_FOLDER)
            save_language_model(model, out / MODEL_FOLDER)
    except RuntimeError as error:
        raise _explained(error) from error
    for part, name in (("valid", "validation"), ("test", "test")):
        stream = _beginning(data.streams[part], settings.test_tokens, data.symbols.unit)
        with progress_bar(f"scoring {name}", len(stream.ids) - 1, "symbols") as tick:
            result[name] = _described(stream, *_score(evaluated, streams_T[part][: len(stream.ids)], settings, tick))
    result["provenance"] = provenance(
        settings.to_dict(), seed=settings.seed, data_checksum=data.checksum, started=started
    )
    save_result(out / RESULT_FILE, result)
    for checkpoint in out.glob("checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)
    return result


def is_scratch(name: str | Path) -> bool:
    """Whether `name` is the folder of a run from scratch, or of its model."""
    return is_language_model(_model_folder(name))


def score_run(
    run: str | Path,
    source: str,
    split: str = "test",
    *,
    text_field: str = "text",
    rows: int | None = None,
    length: int | None = None,
    symbols: int | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Score the model of a run on a text, in rows and segments as at the end of the run.

    Args:
        run: The folder of a run, or of a model alone, which reads one row by default.
        source: A text source.
        split: train, valid, test or all.
        text_field: Field of JSON lines or of a data set that holds the text.
        rows: Batch rows instead of the run's.
        length: Symbols of a segment instead of the run's.
        symbols: Score only this many symbols, from the start.
        device: auto, cpu, cuda or cuda:N.

    Returns:
        The score: `bits_per_symbol`, `bits_per_byte`, `symbols` and more.
    """
    where, folder = pick_device(device), _model_folder(run)
    model, alphabet = load_language_model(folder).to(where), load_symbols(folder)
    arch, unit = architecture_name(model), alphabet.unit
    stream = _beginning(encode_part(alphabet, source, split, text_field=text_field), symbols, unit)
    settings = ScratchSettings.read(folder.parent) if folder.name == MODEL_FOLDER else None
    if settings is None:
        config: Any = model.config
        settings = ScratchSettings(out="", arch=arch, data=source, eval_batch=1, length=config.target_length)
    settings = replace(
        settings,
        eval_batch=rows or settings.eval_batch,
        eval_length=length or settings.eval_length,
        precision="fp32" if settings.precision == "fp32" else "auto",
    )
    with progress_bar(f"scoring {run}", len(stream.ids) - 1, "symbols") as tick:
        ids_T = torch.from_numpy(stream.ids).to(where)
        scored = _score(_evaluated_model(settings, model), ids_T, settings, tick)
    return {"model": str(run), "arch": arch, "unit": unit, **_described(stream, *scored)}


def new_model(settings: ScratchSettings, own: dict[str, Any], vocabulary: int) -> nn.Module:
    """The model with random weights."""
    torch.manual_seed(settings.seed)
    return language_model(settings.arch, vocabulary, target_length=settings.length, **own)


def _evaluated_model(settings: ScratchSettings, model: nn.Module) -> nn.Module:
    """The model, or one with other `eval_settings` that shares its weights."""
    if not settings.eval_settings:
        return model
    config: Any = model.config
    other = new_model(settings, settings.model_settings | settings.eval_settings, config.vocabulary)
    try:
        other.load_state_dict(model.state_dict(), assign=True)
    except RuntimeError as error:
        names = ", ".join(settings.eval_settings)
        raise UserError(
            f"The settings {names} after `eval.` need other weights than the trained ones: change only what works with "
            "the same weights, such as the length of a memory."
        ) from error
    return other


def _score(
    model: nn.Module,
    ids_T: Tensor,
    settings: ScratchSettings,
    tick: Callable[[int], None] = lambda symbols: None,
) -> tuple[Score, int, int]:
    """The score of a stream, the rows and the length of a segment."""
    config: Any = model.config
    device, length = ids_T.device, settings.scored_length
    rows = settings.scoring_rows(len(ids_T), config.vocabulary, remembered_positions(model))
    half = uses_half(settings.precision, device)
    with matmul_context(settings.precision, device):
        score = score_rows(model.eval(), ids_T, rows, length, lambda: precision_context(half, device), tick)
    return score, rows, length


def _described(stream: SymbolStream, score: Score, rows: int, length: int) -> dict[str, Any]:
    """Bits per symbol, which papers on enwik8 call a character, and per byte."""
    return {
        "symbols": score.symbols,
        "loss": score.loss,
        "bits_per_symbol": score.bits_per_symbol,
        "bits_per_byte": score.nats / math.log(2) / stream.bytes if stream.bytes else None,
        "perplexity_per_symbol": score.perplexity,
        "rows": rows,
        "length": length,
    }


def _beginning(stream: SymbolStream, symbols: int | None, unit: str) -> SymbolStream:
    """The first symbols. How many bytes they spell is known only where each symbol is one."""
    if symbols is None or symbols >= len(stream.ids):
        return stream
    return SymbolStream(stream.ids[:symbols], symbols - 1 if unit == "byte" else 0)


def _describe(settings: ScratchSettings, model: nn.Module, data: SymbolData) -> str:
    sizes = ", ".join(f"{part} {len(stream.ids):,}" for part, stream in data.streams.items())
    return (
        f"{settings.arch}: {count_parameters(model):,} parameters; "
        f"{data.symbols.size:,} different {data.symbols.unit}s, {sizes}; "
        f"{settings.batch} rows of {settings.length} in each of {settings.steps:,} steps"
    )


def _describe_validation(entry: dict[str, float], unit: str) -> str:
    return (
        f"step {entry['step']:,}: validation {entry['bits_per_symbol']:.4f} bits per {unit} "
        f"(loss {entry['loss']:.4f}), {entry['training_seconds']:,.0f} s of training"
    )


def _result(settings: ScratchSettings, model: nn.Module, data: SymbolData, outcome: ScratchOutcome) -> dict[str, Any]:
    progress = outcome.progress
    config: Any = model.config
    speed = progress.steps_per_second
    return {
        "kind": "scratch",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "arch": settings.arch,
        "model": asdict(config),
        "parameters": count_parameters(model),
        "unit": data.symbols.unit,
        "vocabulary": data.symbols.size,
        "stream_symbols": {part: len(stream.ids) for part, stream in data.streams.items()},
        "steps": progress.step,
        "tokens": progress.step * settings.symbols_per_step,
        "speed": outcome.speed,
        "tokens_per_second": None if speed is None else speed * settings.symbols_per_step,
        "seconds_per_step": None if speed is None else 1 / speed,
        "training_seconds": round(progress.seconds, 3),
        "peak_gpu_bytes": progress.peak_bytes,
        "history": {"training": progress.training, "validation": progress.validation},
    }


def _model_folder(run: str | Path) -> Path:
    inside = Path(run) / MODEL_FOLDER
    return inside if inside.is_dir() else Path(run)


def _explained(error: RuntimeError) -> Exception:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return UserError(f"The model could not be compiled ({reason}): use --speed eager.")
    if "captur" in str(error):
        return UserError(f"A step could not be captured as a CUDA graph ({reason}): use --speed compile.")
    return error
