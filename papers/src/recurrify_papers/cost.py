"""What recurrence costs: training speed, memory, inference speed and size, plain windows beside recurrent ones.

Both models do the same work on the same tokens in turns, so that a machine that warms up or is shared slows both
alike. A number is the median of the repeats; its spread is the range of the ratios of the single turns.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recurrify.errors import UserError
from recurrify.evaluate.perplexity import evaluation_mode
from recurrify.modeling.heads import RecurrentForCausalLM

WARM_UP = 2
"""Turns that are run and not counted: kernels are chosen and memory is reserved in them."""
DAY = 24.0
"""Hours; the training time that the question about costs was asked for."""
LEARNING_RATE = 1e-6

Row = dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """What both models are made to do."""

    rows: int
    windows: int
    lengths: tuple[int, ...]
    new_tokens: int
    repeats: int
    bf16: bool

    def __post_init__(self) -> None:
        for name in ("rows", "windows", "new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"`{name}` must be at least 1: got {name}={getattr(self, name)}.")
        if not self.lengths or min(self.lengths) < 1:
            raise UserError(f"`lengths` must name documents of 1 token or more: got {list(self.lengths)}.")


def measure_cost(
    plain: RecurrentForCausalLM,
    recurrent: RecurrentForCausalLM,
    *,
    rows: int = 16,
    windows: int = 20,
    lengths: Sequence[int] = (300, 1200, 4800),
    new_tokens: int = 100,
    repeats: int = 5,
    bf16: bool = False,
    say: Callable[[str], None] | None = None,
) -> list[Row]:
    """Measure both models on the device they are on, and leave them as they were.

    - A training step is forward, backward and AdamW over `rows` sequences of `windows` windows, with and without
      bottleneck checkpointing. Rows that do not fit a GPU are halved until they do, for both models.
    - Reading is one pass over documents of each of the `lengths` that predicts every next token, alone and `rows`
      at once.
    - Writing is `new_tokens` greedy tokens after a prompt of one window, so that there is a memory to read from
      the first new token on. The pass that writes the memory when a window is full again is in it if
      `new_tokens` is more than a window.
    - `bf16` computes in bfloat16 where the models are on a CUDA device; elsewhere it does nothing.

    Memory is what a step needs on a CUDA device, weights, gradients and optimizer included; on a CPU, where nobody
    counts it, it is None.
    """
    protocol = Protocol(rows, windows, tuple(lengths), new_tokens, repeats, bf16)
    _check_pair(plain, recurrent)
    tell = say or (lambda text: None)
    pair = (plain, recurrent)
    device = plain.device
    found = [_size_row(*pair)]
    with ExitStack() as stack:
        # Dropout takes random numbers: the caller's should come out the same.
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        for model in pair:
            stack.enter_context(_unchanged(model))
        for checkpoint in (False, True):
            for model in pair:
                model.set_recurrence(checkpoint=checkpoint)
            found += _training_rows(pair, protocol, checkpoint, tell)
        for model in pair:
            stack.enter_context(evaluation_mode(model))
        for length in protocol.lengths:
            found += _reading_rows(pair, protocol, length, tell)
        found += _writing_rows(pair, protocol, tell)
    return found


def _check_pair(plain: RecurrentForCausalLM, recurrent: RecurrentForCausalLM) -> None:
    for name, model in (("plain", plain), ("recurrent", recurrent)):
        if not isinstance(model, RecurrentForCausalLM):
            raise UserError(
                f"`{name}` must be a causal model from add_recurrence, with NoRecurrence for plain windows: "
                f"got {type(model).__name__}."
            )
    if plain.mechanism is not None or recurrent.mechanism is None:
        raise UserError(
            f"`plain` must have the mechanism 'none' and `recurrent` another: got {plain.recurrence.mechanism!r} and "
            f"{recurrent.recurrence.mechanism!r}."
        )
    for what in ("window", "overlap"):
        ours, theirs = getattr(plain.recurrence, what), getattr(recurrent.recurrence, what)
        if ours != theirs:
            raise UserError(f"Both models must have the same {what}: got {ours} for plain, {theirs} for recurrent.")
    for what, both in (
        ("device", (str(plain.device), str(recurrent.device))),
        ("type of weights", (str(plain.dtype), str(recurrent.dtype))),
        ("base, by its number of weights", tuple(f"{model.base.num_parameters():,}" for model in (plain, recurrent))),
    ):
        if both[0] != both[1]:
            raise UserError(f"Both models must have the same {what}: got {both[0]} and {both[1]}.")


# ---- rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timings:
    """Seconds of each turn."""

    plain: list[float]
    recurrent: list[float]

    def row(self, measure: str, unit: str, setting: str, *, work: float, rate: bool, published: str | None) -> Row:
        """`work` per second, or seconds times `work`."""

        def value(seconds: float) -> float:
            return work / seconds if rate else work * seconds

        turns = [value(ours) / value(theirs) for theirs, ours in zip(self.plain, self.recurrent, strict=True)]
        values = value(statistics.median(self.plain)), value(statistics.median(self.recurrent))
        better = "higher" if rate else "lower"
        return cost_row(measure, unit, setting, values, better, (min(turns), max(turns)), published)


def cost_row(
    measure: str,
    unit: str,
    setting: str,
    values: tuple[float | None, float | None],
    better: str,
    spread: tuple[float, float] | None = None,
    published: str | None = None,
) -> Row:
    """One line of a table of costs from the plain and the recurrent value; `ratio` is recurrent over plain and
    `spread` the range of that ratio."""
    plain, recurrent = values
    ratio = recurrent / plain if plain and recurrent is not None else None
    return {
        "measure": measure,
        "unit": unit,
        "setting": setting,
        "plain": plain,
        "recurrent": recurrent,
        "ratio": ratio,
        "spread": None if spread is None else list(spread),
        "better": better,
        "published": published,
    }


def _size_row(plain: RecurrentForCausalLM, recurrent: RecurrentForCausalLM) -> Row:
    def mebibytes(model: RecurrentForCausalLM) -> float:
        return sum(value.numel() * value.element_size() for value in model.parameters()) / 2**20

    dtype = str(plain.dtype).removeprefix("torch.")
    return cost_row("parameters", "MiB", dtype, (mebibytes(plain), mebibytes(recurrent)), "lower")


# ---- training --------------------------------------------------------------------------------------------


def _training_rows(
    pair: tuple[RecurrentForCausalLM, RecurrentForCausalLM],
    protocol: Protocol,
    checkpoint: bool,
    tell: Callable[[str], None],
) -> list[Row]:
    rows = protocol.rows
    while True:
        try:
            timings, peaks, length = _time_training(pair, protocol, rows)
            break
        except torch.cuda.OutOfMemoryError:
            if rows == 1:
                raise UserError(
                    f"Not even one sequence of {protocol.windows} windows fits this GPU: take fewer `windows`."
                ) from None
        torch.cuda.empty_cache()
        rows //= 2
    window = pair[0].recurrence.window
    setting = f"{rows} × {protocol.windows} windows of {window}" + (", checkpointed" if checkpoint else "")
    found = [
        timings.row("training tokens per second", "tokens/s", setting, work=rows * length, rate=True, published=None)
    ]
    per_hour = DAY / statistics.median(timings.plain)
    guess = None if checkpoint else "24 h became close to 30 h (guessed)"
    found.append(
        timings.row("training time of the same tokens", "h", setting, work=per_hour, rate=False, published=guess)
    )
    guess = None if checkpoint else "2 GB more (guessed)"
    found.append(cost_row("peak memory of a training step", "GiB", setting, peaks, "lower", published=guess))
    tell(f"training, {setting}: {_told(found[0])}")
    return found


def _time_training(
    pair: tuple[RecurrentForCausalLM, RecurrentForCausalLM], protocol: Protocol, rows: int
) -> tuple[Timings, tuple[float | None, float | None], int]:
    """Seconds of each step, the peak memory (GiB) of each model's last one, and the tokens of a sequence."""
    recurrence, device = pair[0].recurrence, pair[0].device
    length = recurrence.window + (protocol.windows - 1) * recurrence.stride
    batch = _random_tokens(pair, rows, length + 1)
    steps = (TrainingStep(pair[0], batch, protocol.bf16), TrainingStep(pair[1], batch, protocol.bf16))
    try:
        timings = _in_turns(steps, protocol.repeats, device)
    finally:
        for step in steps:
            step.clear()
    return timings, (steps[0].peak, steps[1].peak), length


class TrainingStep:
    """One update of a model over always the same batch, and the memory that it took."""

    def __init__(self, model: RecurrentForCausalLM, batch: Tensor, bf16: bool) -> None:
        self.model, self.batch, self.bf16 = model.train(), batch, bf16
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, fused=model.device.type == "cuda")
        self.peak: float | None = None

    def __call__(self) -> None:
        on_gpu = self.model.device.type == "cuda"
        if on_gpu:
            # The other model and its optimizer wait in the same memory: they are not this one's cost.
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

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()


# ---- inference -------------------------------------------------------------------------------------------


def _reading_rows(
    pair: tuple[RecurrentForCausalLM, RecurrentForCausalLM],
    protocol: Protocol,
    length: int,
    tell: Callable[[str], None],
) -> list[Row]:
    def reading(model: RecurrentForCausalLM, batch: Tensor) -> Callable[[], None]:
        def call() -> None:
            with torch.inference_mode(), _half(model, protocol.bf16):
                model(batch[:, :-1], targets=batch[:, 1:], return_logits=False)

        return call

    found: list[Row] = []
    for rows in (1, protocol.rows):
        batch = _random_tokens(pair, rows, length + 1)
        timings = _in_turns([reading(model, batch) for model in pair], protocol.repeats, pair[0].device)
        if rows == 1 and not found:
            name, guess = "latency of reading a document", "inference 5 % slower (guessed)"
            found.append(timings.row(name, "ms", f"1 × {length} tokens", work=1e3, rate=False, published=guess))
        else:
            name, setting = "reading throughput", f"{rows} × {length} tokens"
            found.append(timings.row(name, "tokens/s", setting, work=rows * length, rate=True, published=None))
    tell(f"reading {length:,} tokens: {_told(found[0])}")
    return found


def _writing_rows(
    pair: tuple[RecurrentForCausalLM, RecurrentForCausalLM], protocol: Protocol, tell: Callable[[str], None]
) -> list[Row]:
    window, new = pair[0].recurrence.window, protocol.new_tokens

    def writing(model: RecurrentForCausalLM, prompt: Tensor) -> Callable[[], None]:
        def call() -> None:
            with _half(model, protocol.bf16):
                # As many new tokens for both: an end of text must not end the measurement.
                text = model.generate(
                    prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, num_beams=1, pad_token_id=0
                )
            assert text.shape[1] == window + new

        return call

    found: list[Row] = []
    for rows in (1, protocol.rows):
        prompt = _random_tokens(pair, rows, window)
        timings = _in_turns([writing(model, prompt) for model in pair], protocol.repeats, pair[0].device)
        setting = f"{rows} × {new} tokens after {window}"
        if rows == 1 and not found:
            name, work = "latency of a generated token", 1e3 / new
            found.append(timings.row(name, "ms", setting, work=work, rate=False, published=None))
        else:
            name, work = "generated tokens per second", rows * new
            found.append(timings.row(name, "tokens/s", setting, work=work, rate=True, published=None))
    tell(f"generating, {found[0]['setting']}: {_told(found[0])}")
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
    """A GPU answers before it has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _half(model: RecurrentForCausalLM, bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if bf16 and model.device.type == "cuda" else nullcontext()


def _random_tokens(pair: Sequence[RecurrentForCausalLM], rows: int, length: int) -> Tensor:
    vocabulary = min(model.base.config.vocab_size for model in pair)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (rows, length), generator=generator).to(pair[0].device)


@contextmanager
def _unchanged(model: RecurrentForCausalLM) -> Iterator[None]:
    """Whatever is done to the model inside, it comes out with the weights, modes, settings and gradients it had."""
    values = [*model.parameters(), *model.buffers()]
    saved = [value.detach().to("cpu", copy=True) for value in values]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    checkpoint = model.recurrence.checkpoint
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with evaluation_mode(model):
            yield
    finally:
        model.set_recurrence(checkpoint=checkpoint)
        with torch.no_grad():
            for value, before in zip(values, saved, strict=True):
                value.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _told(row: Row) -> str:
    return f"plain {row['plain']:,.4g} {row['unit']}, recurrent {row['recurrent']:,.4g}, ratio {row['ratio']:.3f}"


# ---- convergence -----------------------------------------------------------------------------------------


LEVELS = (0.25, 0.5, 0.75)
"""Shares of the way from the first validation to where the slower run ends."""


def convergence(
    history_plain: Sequence[dict[str, Any]],
    history_recurrent: Sequence[dict[str, Any]],
    *,
    tokens_per_step_plain: float,
    tokens_per_step_recurrent: float,
    levels: Sequence[float] | None = None,
) -> list[Row]:
    """Training tokens until the validation loss first comes down to some levels, as rows of a table of costs.

    The histories are those of training runs; where they do not say how many tokens were seen, steps are taken to be
    alike. The `levels` are, unless given, the lowest loss of the run that ends
    higher, and losses on the way there. Between two validations the loss is taken to go straight; a level below
    which the first validation already lies counts as reached there, not earlier; None is a level never reached.
    """
    curves = []
    for name, history, per_step in (
        ("plain", history_plain, tokens_per_step_plain),
        ("recurrent", history_recurrent, tokens_per_step_recurrent),
    ):
        if not per_step > 0:
            raise UserError(f"`tokens_per_step_{name}` must be a positive number: got {per_step}.")
        curve = validation_curve(history, per_step)
        if not curve:
            raise UserError(f"The {name} run's history has no validation: train with a smaller `valid_every`.")
        curves.append(sorted(curve))
    if levels is None:
        levels = _levels(curves)
    return [
        cost_row(
            "training tokens to a validation loss",
            "tokens",
            f"loss {level:.4f}",
            (_tokens_to(curves[0], level), _tokens_to(curves[1], level)),
            "lower",
        )
        for level in levels
    ]


def validation_curve(history: Sequence[dict[str, Any]], tokens_per_step: float) -> list[tuple[float, float]]:
    """Training tokens, as counted or else by steps, and the loss of each validation."""
    return [
        (entry.get("num_input_tokens_seen", entry["step"] * tokens_per_step), entry["eval_loss"])
        for entry in history
        if entry.get("eval_loss")
    ]


def _levels(curves: Sequence[list[tuple[float, float]]]) -> list[float]:
    end = max(min(loss for _, loss in curve) for curve in curves)
    start = min(curve[0][1] for curve in curves)
    between = [start + share * (end - start) for share in LEVELS] if start > end else []
    return [*between, end]


def _tokens_to(curve: list[tuple[float, float]], level: float) -> float | None:
    before: tuple[float, float] | None = None
    for tokens, loss in curve:
        if loss <= level:
            if before is None:
                return tokens
            return before[0] + (tokens - before[0]) * (before[1] - level) / (before[1] - loss)
        before = (tokens, loss)
    return None
