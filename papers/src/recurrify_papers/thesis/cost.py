"""What recurrence costs: training speed, memory, inference speed and size, compared with plain windows.

Both models do the same work on the same tokens in turns, so that a machine that warms up or is shared slows both. A
number is the median of the repeats; its spread is the range of the ratios of single turns.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recurrify import RecurrentForCausalLM, UserError
from recurrify.data import pick_device
from recurrify.evaluate import evaluation_mode
from recurrify.results import provenance
from recurrify.speed import compile_windows, leave_out_cudnn
from recurrify.train import uses_bf16, uses_compile
from recurrify_papers.finetune import trained_model
from recurrify_papers.runner import Say

WARM_UP = 2
"""Turns that are not counted: kernels are chosen and memory is reserved in them."""
DAY = 24.0
"""Hours: the training time for which the thesis guesses the cost."""
LEARNING_RATE = 1e-6

Model = RecurrentForCausalLM
Pair = tuple[Model, Model]
CostRow = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What both models do."""

    rows: int = 16
    """Sequences of a training step, and documents read or written at once."""
    windows: int = 20
    """Windows of a training sequence."""
    lengths: tuple[int, ...] = (300, 1200, 4800)
    """Tokens of the documents that are read."""
    new_tokens: int = 100
    repeats: int = 5
    bf16: bool = False
    """Compute in bfloat16 on a CUDA device."""


def cost_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Compare two trained models on a device that does nothing else."""
    pair = [trained_model(folder.parent / name)[0].to(pick_device()) for name in settings["runs"]]
    leave_out_cudnn()  # as in training
    if uses_compile("auto"):
        for model in pair:
            compile_windows(model)
    half = pick_device().type == "cuda" and uses_bf16("auto")
    rows = measure_cost((pair[0], pair[1]), Workload(bf16=half, **settings["workload"]), say)
    return {"kind": "cost", "rows": rows, "provenance": provenance(settings)}


def measure_cost(pair: Pair, work: Workload, say: Say) -> list[CostRow]:
    """Measure plain windows and a recurrent model; their weights change.

    - A training step is forward, backward and AdamW, with and without checkpointed windows. Sequences that do not fit a
      GPU are halved until they do, for both models.
    - Reading is one pass over documents that predicts every next token, one document and `rows` at once.
    - Writing is greedy tokens after a prompt of one window, so that there is a memory from the first new token on.

    Memory is the peak of a step on a CUDA device with weights, gradients and optimizer; on a CPU it is None.
    """
    found = [_size_row(pair)]
    for checkpoint in (False, True):
        for model in pair:
            model.set_recurrence(checkpoint=checkpoint)
        found += _training_rows(pair, work, checkpoint, say)
    with evaluation_mode(pair[0]), evaluation_mode(pair[1]):
        for length in work.lengths:
            found += _reading_rows(pair, work, length, say)
        return found + _writing_rows(pair, work, say)


def cost_row(
    measure: str,
    unit: str,
    setting: str,
    values: tuple[float | None, float | None],
    spread: tuple[float, float] | None = None,
    published: str | None = None,
) -> CostRow:
    """One row from the plain and the recurrent value; `ratio` is recurrent over plain, `spread` the range of ratios."""
    plain, recurrent = values
    ratio = recurrent / plain if plain and recurrent is not None else None
    names = {"measure": measure, "unit": unit, "setting": setting, "plain": plain, "recurrent": recurrent}
    return {**names, "ratio": ratio, "spread": None if spread is None else list(spread), "published": published}


@dataclass(frozen=True)
class Timings:
    """Seconds of each turn."""

    plain: list[float]
    recurrent: list[float]

    def row(self, measure: str, unit: str, setting: str, work: float, published: str | None = None) -> CostRow:
        """`work` per second if the unit is a rate, else `work` times the seconds."""

        def value(seconds: float) -> float:
            return work / seconds if unit == "tokens/s" else work * seconds

        turns = [value(ours) / value(theirs) for theirs, ours in zip(self.plain, self.recurrent, strict=True)]
        values = value(statistics.median(self.plain)), value(statistics.median(self.recurrent))
        return cost_row(measure, unit, setting, values, (min(turns), max(turns)), published)


def _size_row(pair: Pair) -> CostRow:
    sizes = [sum(value.numel() * value.element_size() for value in model.parameters()) / 2**20 for model in pair]
    return cost_row("parameters", "MiB", str(pair[0].dtype).removeprefix("torch."), (sizes[0], sizes[1]))


# ---- training --------------------------------------------------------------------------------------------


def _training_rows(pair: Pair, work: Workload, checkpoint: bool, say: Say) -> list[CostRow]:
    rows = work.rows
    while True:
        try:
            timings, peaks, length = _time_training(pair, work, rows)
            break
        except torch.cuda.OutOfMemoryError:
            if rows == 1:
                raise UserError(f"One sequence of {work.windows} windows does not fit this GPU.") from None
        torch.cuda.empty_cache()
        rows //= 2
    window = pair[0].recurrence.window
    setting = f"{rows} × {work.windows} windows of {window}" + (", checkpointed" if checkpoint else "")
    hours = DAY / statistics.median(timings.plain)
    guesses = (None, None) if checkpoint else ("24 h became close to 30 h (guessed)", "2 GB more (guessed)")
    found = [
        timings.row("training tokens per second", "tokens/s", setting, rows * length),
        timings.row("training time of the same tokens", "h", setting, hours, guesses[0]),
        cost_row("peak memory of a training step", "GiB", setting, peaks, published=guesses[1]),
    ]
    say(f"training, {setting}: {_described(found[0])}")
    return found


def _time_training(pair: Pair, work: Workload, rows: int) -> tuple[Timings, tuple[float | None, float | None], int]:
    """Seconds of each step, the peak memory (GiB) of each model's last one, and the tokens of a sequence."""
    recurrence = pair[0].recurrence
    length = recurrence.window + (work.windows - 1) * recurrence.stride
    batch = _random_tokens(pair, rows, length + 1)
    steps = TrainingStep(pair[0], batch, work.bf16), TrainingStep(pair[1], batch, work.bf16)
    try:
        timings = _in_turns(steps, work.repeats, pair[0].device)
    finally:
        for step in steps:
            step.optimizer.zero_grad(set_to_none=True)
            step.optimizer.state.clear()
    return timings, (steps[0].peak, steps[1].peak), length


class TrainingStep:
    """One update of a model over always the same batch, and the memory that it took."""

    def __init__(self, model: Model, batch: Tensor, bf16: bool) -> None:
        self.model, self.batch, self.bf16 = model.train(), batch, bf16
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=model.device.type == "cuda")
        self.peak: float | None = None

    def __call__(self) -> None:
        on_gpu = self.model.device.type == "cuda"
        if on_gpu:  # the other model and its optimizer are in the same memory
            others = torch.cuda.memory_allocated(self.model.device) - self._own_bytes()
            torch.cuda.reset_peak_memory_stats(self.model.device)
        with _half(self.model, self.bf16):
            loss = self.model(self.batch[:, :-1], targets=self.batch[:, 1:]).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            self.peak = (torch.cuda.max_memory_allocated(self.model.device) - others) / 2**30

    def _own_bytes(self) -> int:
        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        own = [*self.model.parameters(), *self.model.buffers(), self.batch, *state]
        return sum(value.numel() * value.element_size() for value in own if value.device == self.model.device)


# ---- inference -------------------------------------------------------------------------------------------


def _reading_rows(pair: Pair, work: Workload, length: int, say: Say) -> list[CostRow]:
    def reading(model: Model, batch: Tensor) -> Callable[[], None]:
        def call() -> None:
            with torch.inference_mode(), _half(model, work.bf16):
                model(batch[:, :-1], targets=batch[:, 1:], return_logits=False)

        return call

    timings = {}
    for rows in (1, work.rows):
        batch = _random_tokens(pair, rows, length + 1)
        timings[rows] = _in_turns([reading(model, batch) for model in pair], work.repeats, pair[0].device)
    guess = "inference 5 % slower (guessed)"
    found = [timings[1].row("latency of reading a document", "ms", f"1 × {length} tokens", 1e3, guess)]
    setting = f"{work.rows} × {length} tokens"
    found.append(timings[work.rows].row("reading throughput", "tokens/s", setting, work.rows * length))
    say(f"reading {length:,} tokens: {_described(found[0])}")
    return found


def _writing_rows(pair: Pair, work: Workload, say: Say) -> list[CostRow]:
    window, new = pair[0].recurrence.window, work.new_tokens

    def writing(model: Model, prompt: Tensor) -> Callable[[], None]:
        def call() -> None:
            with _half(model, work.bf16):
                # As many new tokens for both: an end of text must not end the measurement.
                model.generate(
                    prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, num_beams=1, pad_token_id=0
                )

        return call

    timings = {}
    for rows in (1, work.rows):
        prompt = _random_tokens(pair, rows, window)
        timings[rows] = _in_turns([writing(model, prompt) for model in pair], work.repeats, pair[0].device)
    found = [timings[1].row("latency of a generated token", "ms", f"1 × {new} tokens after {window}", 1e3 / new)]
    setting = f"{work.rows} × {new} tokens after {window}"
    found.append(timings[work.rows].row("generated tokens per second", "tokens/s", setting, work.rows * new))
    say(f"generating: {_described(found[0])}")
    return found


# ---- shared ----------------------------------------------------------------------------------------------


def _in_turns(calls: Sequence[Callable[[], None]], repeats: int, device: torch.device) -> Timings:
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(WARM_UP + repeats):
        for call, found in zip(calls, seconds, strict=True):
            _wait(device)
            started = time.perf_counter()
            call()
            _wait(device)
            if turn >= WARM_UP:
                found.append(time.perf_counter() - started)
    return Timings(*seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _half(model: Model, bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if bf16 and model.device.type == "cuda" else nullcontext()


def _random_tokens(pair: Pair, rows: int, length: int) -> Tensor:
    vocabulary = min(model.base.config.vocab_size for model in pair)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (rows, length), generator=generator).to(pair[0].device)


def _described(row: CostRow) -> str:
    return f"plain {row['plain']:,.4g} {row['unit']}, recurrent {row['recurrent']:,.4g}, ratio {row['ratio']:.3f}"
