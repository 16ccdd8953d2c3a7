"""What recurrence costs: training speed, memory, inference speed and size, compared with plain windows.

Both models do the same work on the same tokens in turns, so that a machine that warms up or is shared slows both. A
number is the median of the turns; the range of a ratio is that of single turns.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
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
from recurrify_papers.bench.timing import OUT_OF_MEMORY, Entrant, interleave, ratio
from recurrify_papers.finetune import trained_model
from recurrify_papers.runner import Say

LEARNING_RATE = 1e-6
Model = RecurrentForCausalLM
Pair = tuple[Model, Model]
Numbers = list[dict[str, Any]]


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
    device = pick_device()
    plain, recurrent = (trained_model(Path(run))[0].to(device) for run in settings["runs"])
    leave_out_cudnn()  # as in training
    if uses_compile("auto"):
        for model in (plain, recurrent):
            compile_windows(model)
    half = device.type == "cuda" and uses_bf16("auto")
    numbers = measure_cost((plain, recurrent), Workload(bf16=half, **settings["workload"]), say)
    return {"kind": "cost", "numbers": numbers, "provenance": provenance(settings)}


def measure_cost(pair: Pair, work: Workload, say: Say) -> Numbers:
    """Measure plain windows and a recurrent model; their weights change.

    - A training step is forward, backward and AdamW, with and without checkpointed windows. Sequences that do not fit a
      GPU are halved until they do, for both models.
    - Reading is one pass over documents that predicts every next token, one document and `rows` at once.
    - Writing is greedy tokens after a prompt of one window, so that there is a memory from the first new token on.

    Memory is the peak of a step on a CUDA device with weights, gradients and optimizer; on a CPU it is None.
    """
    sizes = [sum(value.numel() * value.element_size() for value in model.parameters()) / 2**20 for model in pair]
    found = compared("parameters", "MiB", str(pair[0].dtype).removeprefix("torch."), sizes)
    for checkpoint in (False, True):
        for model in pair:
            model.set_recurrence(checkpoint=checkpoint)
        found += _training(pair, work, checkpoint)
        say(f"training with checkpoint={checkpoint}: measured")
    with evaluation_mode(pair[0]), evaluation_mode(pair[1]):
        for length in work.lengths:
            found += _reading(pair, work, length)
            say(f"reading {length:,} tokens: measured")
        return found + _writing(pair, work)


def compared(
    measure: str, unit: str, setting: str, values: Sequence[float | None], notes: Sequence[str] = ()
) -> Numbers:
    """Plain, recurrent, and recurrent over plain."""
    plain, recurrent = values
    metric, note = f"{measure} ({unit})", "; ".join(notes) or None
    share = recurrent / plain if plain and recurrent is not None else None
    return [
        {"label": setting, "metric": metric, "model": "plain", "value": plain},
        {"label": setting, "metric": metric, "model": "carry", "value": recurrent},
        {"label": setting, "metric": f"{measure}, ratio", "model": None, "value": share, "note": note},
    ]


def timed(
    runs: Sequence[Callable[[], object]], repeats: int, device: torch.device, per_turn: float, unit: str = "tokens/s"
) -> tuple[list[float | None], list[str]]:
    """Plain and recurrent values of a rate, or of a latency in ms, and the range of the ratios of single turns.

    `per_turn`: how many tokens or parts a turn has.
    """
    timings = interleave([Entrant(run=run, name="") for run in runs], repeats, device)
    if any(timing.problem == OUT_OF_MEMORY for timing in timings):
        raise torch.OutOfMemoryError
    values = [timing.rate(per_turn) for timing in timings]
    plain, recurrent = (timing.seconds for timing in timings)
    if unit == "ms":
        values, plain, recurrent = [1000 / rate for rate in values if rate], recurrent, plain
    (turns,) = ratio("", recurrent, plain)
    return values, [f"single turns {turns['low']:.3f} to {turns['high']:.3f}"]


def _training(pair: Pair, work: Workload, checkpoint: bool) -> Numbers:
    recurrence, device = pair[0].recurrence, pair[0].device
    length = recurrence.window + (work.windows - 1) * recurrence.stride
    rows = work.rows
    while True:
        batch = _random_tokens(pair, rows, length + 1)
        steps = [TrainingStep(model, batch, work.bf16) for model in pair]
        try:
            rates, notes = timed(steps, work.repeats, device, rows * length)
            break
        except torch.OutOfMemoryError:
            if rows == 1:
                raise UserError(f"One sequence of {work.windows} windows does not fit this GPU.") from None
        rows //= 2
    setting = f"{rows} × {work.windows} windows of {recurrence.window}" + (", checkpointed" if checkpoint else "")
    guesses = ([], []) if checkpoint else (["published: 24 h became close to 30 h (guessed)"], ["published: 2 GB more"])
    return [
        *compared("training tokens per second", "tokens/s", setting, rates, [*guesses[0], *notes]),
        *compared("peak memory of a training step", "GiB", setting, [step.peak for step in steps], guesses[1]),
    ]


class TrainingStep:
    """One update of a model on the same batch each time, and the memory that it took."""

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


def _reading(pair: Pair, work: Workload, length: int) -> Numbers:
    def read(model: Model, batch: Tensor) -> None:
        with torch.inference_mode(), _half(model, work.bf16):
            model(batch[:, :-1], targets=batch[:, 1:], return_logits=False)

    batches = [_random_tokens(pair, rows, length + 1) for rows in (1, work.rows)]
    one, many = ([partial(read, model, batch) for model in pair] for batch in batches)
    latency, notes = timed(one, work.repeats, pair[0].device, 1, "ms")
    rates, turns = timed(many, work.repeats, pair[0].device, work.rows * length)
    notes.insert(0, "published: inference 5 % slower (guessed)")
    return [
        *compared("latency of reading a document", "ms", f"1 × {length} tokens", latency, notes),
        *compared("reading throughput", "tokens/s", f"{work.rows} × {length} tokens", rates, turns),
    ]


def _writing(pair: Pair, work: Workload) -> Numbers:
    window, new = pair[0].recurrence.window, work.new_tokens
    # As many new tokens for both: an end of text must not end the measurement.
    length: Any = {"max_new_tokens": new, "min_new_tokens": new}

    def write(model: Model, prompt: Tensor) -> None:
        with _half(model, work.bf16):
            model.generate(prompt, do_sample=False, num_beams=1, pad_token_id=0, **length)

    prompts = [_random_tokens(pair, rows, window) for rows in (1, work.rows)]
    one, many = ([partial(write, model, prompt) for model in pair] for prompt in prompts)
    latency, notes = timed(one, work.repeats, pair[0].device, new, "ms")
    rates, turns = timed(many, work.repeats, pair[0].device, work.rows * new)
    setting = f"{new} tokens after {window}"
    return [
        *compared("latency of a generated token", "ms", f"1 × {setting}", latency, notes),
        *compared("generated tokens per second", "tokens/s", f"{work.rows} × {setting}", rates, turns),
    ]


def _half(model: Model, bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if bf16 and model.device.type == "cuda" else nullcontext()


def _random_tokens(pair: Pair, rows: int, length: int) -> Tensor:
    vocabulary = min(model.base.config.vocab_size for model in pair)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (rows, length), generator=generator).to(pair[0].device)
