"""Language models from scratch as a whole job: from names of text to a model in a folder, with its result."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recurrify.console import progress_bar
from recurrify.data.records import Skipped
from recurrify.data.texts import Say, cache_folder, pick_device
from recurrify.errors import UserError
from recurrify.records import MODEL_FOLDER
from recurrify.results import provenance, save_result
from recurrify.speed.backends import leave_out_cudnn
from recurrify.train.finetuning import explain_full_disk
from recurrify.train.resuming import RESULT_FILE, earlier_result
from recurrify_papers.models.language import (
    architecture_name,
    count_parameters,
    is_language_model,
    language_model,
    load_language_model,
    save_language_model,
)
from recurrify_papers.scratch.lanes import Lanes, Score, score_lanes
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import (
    chosen_speed,
    matmul_context,
    matmul_precision,
    precision_context,
    remembered,
    uses_half,
)
from recurrify_papers.scratch.symbols import SymbolData, SymbolStream, encode_part, load_symbols, read_symbols
from recurrify_papers.scratch.training import TRAINING_FILE, Progress, ScratchOutcome, fit, saved_step


def train_scratch(settings: ScratchSettings, say: Say, show_progress: bool = True) -> dict[str, Any]:
    """Train as the settings say and leave model and result in `settings.out`; goes on with a run begun there."""
    out, started = Path(settings.out), time.time()
    device = pick_device()
    chosen_speed(settings, device)  # refuses what this machine cannot do before the text is read
    uses_half(settings.precision, device)
    data = _read(settings, say)
    settings = replace(settings, data_checksum=data.checksum)
    model = _new_model(settings, data.symbols.size)
    settings = settings.as_built(model.config)
    scorer = Scorer(settings, data.symbols.size, model, device)
    ids_T = _on_device(data.streams["train"], device)
    Lanes(ids_T, settings.batch, settings.length)  # refuses a text that is too short
    earlier = earlier_result(settings, say, saved_step)
    if earlier is not None:
        return earlier
    settings.write()
    model.to(device)
    leave_out_cudnn()
    say(_describe(settings, model, data))
    valid_T = _on_device(data.streams["valid"], device)
    try:
        shown = progress_bar("training", settings.steps) if show_progress else nullcontext()
        with matmul_context(settings.precision, device), shown as tick:
            outcome = fit(
                model,
                ids_T,
                settings,
                lambda now: scorer(now, valid_T[: settings.valid_tokens]).score,
                out,
                lambda entry: say(_describe_validation(entry, data.symbols.unit)),
                tick,
                say,
            )
    except (OSError, RuntimeError) as error:
        raise _explained(error, settings.out) from error
    result = _result(settings, model, data, outcome)
    if outcome.finished:
        # Before it is scored, which may take long: whoever stops that has a model.
        _leave(settings, model, data, out)
        for part in ("valid", "test"):
            stream = _beginning(data.streams[part], settings.test_tokens, data.symbols.unit)
            shown = progress_bar(f"scoring {part}", len(stream.ids) - 1) if show_progress else nullcontext()
            with shown as tick:
                found = scorer(model, _on_device(stream, device), tick)
            result["validation" if part == "valid" else part] = found.described(stream)
    else:
        say(f"stopped and saved after step {outcome.progress.step:,}: run the same command again to go on")
    result["provenance"] = provenance(
        settings.to_dict(), seed=settings.seed, data_checksum=data.checksum, started=started
    ) | {"arithmetic": described_arithmetic(settings.precision, device)}
    if outcome.finished:
        save_result(out / RESULT_FILE, result)
        # What was kept for going on is taken away last.
        (out / TRAINING_FILE).unlink(missing_ok=True)
    return result


def score_stream(
    model: nn.Module | str | Path,
    stream: SymbolStream,
    *,
    batch: int = 1,
    length: int = 512,
    device: str = "auto",
    precision: str = "auto",
) -> Score:
    """Predict every symbol of a stream but its first, in `batch` lanes; `model` may be a run's folder."""
    where = pick_device(device)
    loaded = model if isinstance(model, nn.Module) else load_language_model(_model_folder(model))
    loaded, half = loaded.to(where).eval(), uses_half(precision, where)
    with matmul_context(precision, where):
        return score_lanes(loaded, _on_device(stream, where), batch, length, lambda: precision_context(half, where))


def stream_for(run: str | Path, source: str, split: str = "test", *, text_field: str = "text") -> SymbolStream:
    """A split of any source in the symbols of a run's model."""
    symbols = load_symbols(_model_folder(run))
    return encode_part(symbols, source, split, text_field=text_field, cache_dir=cache_folder())


def is_scratch(name: str | Path) -> bool:
    """Whether a name is the folder of a run from scratch, or of its model."""
    return is_language_model(_model_folder(name))


def score_run(
    run: str | Path,
    source: str,
    split: str = "test",
    *,
    text_field: str = "text",
    lanes: int | None = None,
    length: int | None = None,
    symbols: int | None = None,
    device: str = "auto",
    show_progress: bool = True,
) -> dict[str, Any]:
    """A run's model on any text, read as the run read its own: in its lanes and segments, the state carried along, with
    its `eval_settings`. A model whose run is gone reads in one lane. `lanes` and `length` ask for other lanes and other
    segments, `symbols` for the first so many of the text."""
    where, folder = pick_device(device), _model_folder(run)
    model = load_language_model(folder).to(where)
    unit = load_symbols(folder).unit
    stream = _beginning(stream_for(run, source, split, text_field=text_field), symbols, unit)
    config: Any = model.config
    made = ScratchSettings.read(folder.parent) if folder.name == MODEL_FOLDER else None
    settings = made or ScratchSettings(out="", arch=architecture_name(model), data=source, eval_batch=1)
    if made is None:
        settings = replace(settings, length=getattr(config, "target_length", settings.length))
    precision = "fp32" if settings.precision == "fp32" else "auto"
    settings = replace(
        settings,
        eval_batch=lanes or settings.eval_batch,
        eval_length=settings.eval_length if length is None else length,
        precision=precision,
    )
    scorer = Scorer(settings, config.vocabulary, model, where)
    shown = progress_bar(f"scoring {run}", len(stream.ids) - 1) if show_progress else nullcontext()
    with shown as tick:
        found = scorer(model, _on_device(stream, where), tick)
    return {"model": str(run), "arch": architecture_name(model), "unit": unit, **found.described(stream)}


def described_arithmetic(precision: str, device: torch.device) -> dict[str, Any]:
    """What `precision` came to on this machine."""
    return {
        "autocast": "bf16" if uses_half(precision, device) else None,
        "float32_matmul": matmul_precision(precision, device),
    }


class Scored(NamedTuple):
    score: Score
    lanes: int
    length: int
    """Of a segment."""

    def described(self, stream: SymbolStream) -> dict[str, Any]:
        """By symbol, which is what papers on enwik8 call a character, and by the characters and bytes they spell."""
        score, bits = self.score, self.score.nats / math.log(2)
        return {
            "symbols": score.symbols,
            "loss": score.loss,
            "bits_per_symbol": score.bits_per_symbol,
            "bits_per_character": bits / stream.characters if stream.characters else None,
            "bits_per_byte": bits / stream.bytes if stream.bytes else None,
            "perplexity_per_symbol": score.perplexity,
            "lanes": self.lanes,
            "length": self.length,
        }


class Scorer:
    """Scores streams with a model's weights, in the shape that `eval_settings` ask for."""

    def __init__(self, settings: ScratchSettings, vocabulary: int, model: nn.Module, device: torch.device) -> None:
        self.settings, self.vocabulary, self.device = settings, vocabulary, device
        self.half = uses_half(settings.precision, device)
        self.other: nn.Module | None = None
        if settings.eval_settings:
            if "target_length" in settings.eval_settings:
                raise UserError("`target_length` is the length of a training segment: give --eval-length instead.")
            changed = settings.settings | settings.eval_settings
            self.other = _new_model(replace(settings, settings=changed), vocabulary)
            self._take_weights(model)
            self.other = self.other.to(device).eval()

    def __call__(self, model: nn.Module, ids_T: Tensor, tick: Callable[[int], None] | None = None) -> Scored:
        if self.other is not None:
            self._take_weights(model)
        used = model.eval() if self.other is None else self.other
        lanes = self.settings.scoring_lanes(len(ids_T), self.vocabulary, remembered(used))
        with matmul_context(self.settings.precision, self.device):
            score = score_lanes(
                used,
                ids_T,
                lanes,
                self.settings.scored_length,
                lambda: precision_context(self.half, self.device),
                tick or (lambda symbols: None),
            )
        return Scored(score, lanes, self.settings.scored_length)

    def _take_weights(self, model: nn.Module) -> None:
        assert self.other is not None
        try:
            self.other.load_state_dict(model.state_dict())
        except RuntimeError as error:
            names = ", ".join(self.settings.eval_settings)
            raise UserError(
                f"The `eval_settings` {names} ask for other weights than are trained: change only what a model can "
                "have differently on the same weights, such as the length of a memory."
            ) from error


def _new_model(settings: ScratchSettings, vocabulary: int) -> nn.Module:
    if "target_length" in settings.settings:
        raise UserError("`target_length` is the length of a training segment: give it as --length.")
    torch.manual_seed(settings.seed)
    return language_model(settings.arch, vocabulary, **{"target_length": settings.length, **settings.settings})


def _read(settings: ScratchSettings, say: Say) -> SymbolData:
    skipped: list[Skipped] = []
    data = read_symbols(
        settings.symbols,
        settings.data,
        valid=settings.valid,
        text_field=settings.text_field,
        cache_dir=cache_folder(),
        skipped=skipped,
    )
    for entry in skipped[:10]:
        say(f"skipped {entry.name}: {entry.reason}")
    if len(skipped) > 10:
        say(f"… and skipped {len(skipped) - 10} more")
    return data


def _on_device(stream: SymbolStream, device: torch.device) -> Tensor:
    return torch.from_numpy(stream.ids).to(device)


def _beginning(stream: SymbolStream, symbols: int | None, unit: str) -> SymbolStream:
    """How many characters and bytes a part of a stream spells is not known, but where each is a symbol."""
    if symbols is None or symbols >= len(stream.ids):
        return stream
    spelt = {unit: symbols - 1}  # all but the first, as in a whole stream
    return SymbolStream(stream.ids[:symbols], spelt.get("character", 0), spelt.get("byte", 0))


def _describe(settings: ScratchSettings, model: nn.Module, data: SymbolData) -> str:
    sizes = ", ".join(f"{part} {len(stream.ids):,}" for part, stream in data.streams.items())
    return (
        f"{settings.arch}: {count_parameters(model):,} parameters; "
        f"{data.symbols.size:,} different {data.symbols.unit}s, {sizes}; {_describe_recurrence(model)}"
        f"{settings.batch} lanes of {settings.length} in each of {settings.steps:,} steps"
    )


def _describe_recurrence(model: nn.Module) -> str:
    config: Any = model.config
    rsa = getattr(config, "rsa", None)
    if rsa is None:
        return ""
    dilated = f", dilations {', '.join(map(str, rsa.dilations))}" if rsa.dilations else ""
    return f"recurrence in {rsa.rem_heads} of {rsa.heads} heads{dilated}; "


def _describe_validation(entry: dict[str, float], unit: str) -> str:
    return (
        f"step {entry['step']:,}: validation {entry['bits_per_symbol']:.4f} bits per {unit} "
        f"(loss {entry['loss']:.4f}), {entry['training_seconds']:,.0f} s of training"
    )


def _result(settings: ScratchSettings, model: nn.Module, data: SymbolData, outcome: ScratchOutcome) -> dict[str, Any]:
    progress: Progress = outcome.progress
    config: Any = model.config
    pace = outcome.steps_per_second
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
        "tokens_per_second": None if pace is None else pace * settings.symbols_per_step,
        "seconds_per_step": None if pace is None else 1 / pace,
        "training_seconds": round(progress.seconds, 3),
        "peak_gpu_bytes": progress.peak_bytes,
        "history": {"training": progress.training, "validation": progress.validation},
    }


def _leave(settings: ScratchSettings, model: nn.Module, data: SymbolData, out: Path) -> None:
    try:
        data.symbols.save(out / MODEL_FOLDER)
        save_language_model(model, out / MODEL_FOLDER)
    except OSError as error:
        raise explain_full_disk(error, settings.out) from error


def _model_folder(run: str | Path) -> Path:
    inside = Path(run) / MODEL_FOLDER
    return inside if inside.is_dir() else Path(run)


def _explained(error: Exception, out: str) -> Exception:
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return UserError(f"The model could not be compiled ({reason}): use --speed eager.")
    if "captur" in str(error):
        reason = str(error).strip().splitlines()[0]
        return UserError(f"A step could not be captured as a CUDA graph ({reason}): use --speed compile.")
    return explain_full_disk(error, out)
