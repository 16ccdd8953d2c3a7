"""A small model trained on a symbol probe over a few windows, and tested over many more."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup, set_seed

from recurrify import UserError
from recurrify.data import IGNORED, Say, pick_device, whole_distances
from recurrify.evaluate import ProbeScore, evaluation_mode, memory_cost, read_windows, score_of, task_result
from recurrify.modeling import KVConfig, RecurrentForCausalLM, add_recurrence, load_model, recurrence_config
from recurrify.results import provenance
from recurrify.settings import check_settings, setting
from recurrify.speed import leave_out_cudnn
from recurrify_papers.probes.symbols import SymbolProbe, SymbolTexts, probe_stream, repetitions, symbol_probe

Progress = Callable[[int], None]
Bar = Callable[..., AbstractContextManager[Progress]]
"""Opens a progress bar, given a name and a total."""
SYMBOLS_WINDOW = 32
"""Default number of symbols in a window."""
FEWEST_TWICE = 4
"""The smallest window in which a list of two symbols can be repeated."""
LAYERS, WIDTH, HEADS = 4, 64, 4
"""Of a model from scratch."""
GROWTH = 0.5
"""The share of the training steps over which the largest distance grows from 1."""
MOST_SYMBOLS = 2**28
"""The most symbols generated at once: with their targets they take four GiB."""


@dataclass(frozen=True, kw_only=True)
class SymbolTraining:
    """Settings of a small model trained on a symbol probe."""

    task: str = "recall"
    task_settings: dict[str, int] = field(default_factory=dict)
    """Changed settings of the task, such as pairs=8."""
    recurrence: dict[str, Any] = field(default_factory=lambda: {"mechanism": "compress"})
    """The mechanism and its settings."""
    model: str | None = None
    """A base whose first tokens serve as symbols; None is a small GPT-2 from scratch."""
    windows: int = setting(10, at_least=1)
    """The largest training distance."""
    distances: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100)
    """The tested distances, in windows."""
    examples: int = setting(200, at_least=1)
    """Sequences at each tested distance."""
    steps: int = setting(3000, at_least=1)
    batch: int = setting(64, at_least=1)
    learning_rate: float = setting(1e-3, positive=True)
    repetitions: int = setting(600, at_least=0)
    """Steps before those, on lists that are repeated: from them a model learns to look things up, which it rarely
    learns from the task itself."""
    seed: int = setting(0, at_least=0, at_most=2**32 - 1)

    def __post_init__(self) -> None:
        whole_distances(self.distances)
        check_settings(self)

    def check_amounts(self, window: int) -> None:
        """Raise a `UserError` for more symbols than can be generated at once."""
        for name, farthest, count, counted in (
            ("distances", max(self.distances), self.examples, "examples"),
            ("windows", self.windows, self.batch, "batch"),
        ):
            symbols = count * (farthest + 1) * window
            if symbols > MOST_SYMBOLS:
                raise UserError(
                    f"{counted}={count} sequences over {farthest:,} windows of {window} have {symbols:,} symbols, of "
                    f"which at most {MOST_SYMBOLS:,} are made at once: choose smaller `{name}` or `{counted}`."
                )

    def texts(self, step: int, probe: SymbolProbe, window: int) -> SymbolTexts:
        """New sequences of one distance for a step, counted from 0 with the repetitions."""
        chance = probe_stream("train", self.seed, step)
        if step < self.repetitions:
            return repetitions(probe.vocabulary, self.batch, window, chance)
        distance = int(chance.integers(self.farthest(step - self.repetitions) + 1))
        return probe.make(distance, self.batch, window, chance)

    def farthest(self, step: int) -> int:
        """The largest distance of a step, counted from 0."""
        growing = GROWTH * self.steps
        return self.windows if step >= growing else 1 + int((self.windows - 1) * step / growing)


def probe_training(settings: SymbolTraining, say: Say, bar: Bar, device: str = "auto") -> dict[str, Any]:
    """Train, then test at every distance and at distance 0, where facts and questions share a window."""
    started = time.time()
    probe = symbol_probe(settings.task, **settings.task_settings)
    model = model_for(settings, probe).to(pick_device(device))
    if settings.repetitions and model.recurrence.window < FEWEST_TWICE:
        raise UserError(
            f"Windows of {model.recurrence.window} are too short for repetitions: choose a --window of at least "
            f"{FEWEST_TWICE}, or --repetitions 0."
        )
    settings.check_amounts(model.recurrence.window)
    settings.texts(settings.repetitions, probe, model.recurrence.window)  # raises if the task does not fit
    with bar(f"training on {probe.name}", settings.repetitions + settings.steps, "steps") as progress:
        curve = train_on_symbols(model, probe, settings, progress)
    say(f"trained {settings.steps} steps: loss {curve[-1]['loss']:.3f}, over all distances up to {settings.windows}")
    window = model.recurrence.window
    distances = [0, *whole_distances(settings.distances)]
    scores: dict[int, ProbeScore] = {}
    with (
        evaluation_mode(model),
        bar(f"testing {probe.name}", sum(one + 1 for one in distances) * window * settings.examples) as progress,
    ):
        for distance in distances:
            texts = probe.make(distance, settings.examples, window, probe_stream("test", settings.seed, distance))
            scores[distance] = score_symbols(model, probe, texts, progress=progress)
    return {
        "kind": "probe",
        "name": f"{model.recurrence.mechanism}{'' if settings.model is None else f' on {settings.model}'}",
        "mechanism": model.recurrence.mechanism,
        "window": window,
        "trained_up_to": settings.windows,
        "tasks": [task_result(probe, scores, "symbols", asdict(cast(Any, probe)))],
        "curve": curve,
        "memory": memory_cost(model)._asdict(),
        "provenance": provenance(
            {**asdict(settings), "recurrence": model.recurrence.to_dict()}, seed=settings.seed, started=started
        ),
    }


def model_for(settings: SymbolTraining, probe: SymbolProbe) -> RecurrentForCausalLM:
    """The model before training."""
    set_seed(settings.seed)
    wanted = {"window": SYMBOLS_WINDOW, "overlap": 0} | settings.recurrence
    if wanted["overlap"]:
        raise UserError(f"Probes count windows without overlap: got overlap={wanted['overlap']}; leave it out.")
    if wanted["mechanism"] == KVConfig.mechanism and isinstance(wanted["window"], int):
        # The default is for windows of a language model.
        wanted.setdefault("keep", max(1, wanted["window"] - wanted.get("sinks", KVConfig.sinks)))
    if settings.model is not None:
        model, _ = load_model(settings.model, wanted)
        if probe.vocabulary > int(model.base.config.vocab_size):
            raise UserError(
                f"{settings.model!r} has fewer tokens than the {probe.vocabulary} symbols of {probe.name!r}."
            )
        return model
    config = recurrence_config(wanted)
    if "neutral_start" in {one.name for one in fields(config)} and "neutral_start" not in wanted:
        # There is no trained base whose behaviour must be kept.
        config = recurrence_config(wanted | {"neutral_start": False})
    base = GPT2Config(
        vocab_size=probe.vocabulary,
        # Positions for the inputs that a mechanism adds.
        n_positions=2 * config.window + 64,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        # The default, 0.02, is for wide models; a narrow one would hardly see its input.
        initializer_range=WIDTH**-0.5,
    )
    return cast(RecurrentForCausalLM, add_recurrence(GPT2LMHeadModel(base), config))


def train_on_symbols(
    model: RecurrentForCausalLM, probe: SymbolProbe, settings: SymbolTraining, progress: Progress
) -> list[dict[str, float]]:
    """Train on distances from 0 to the largest; returns the loss over time."""
    window, steps = model.recurrence.window, settings.repetitions + settings.steps
    model.train()
    leave_out_cudnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    scheduler = get_cosine_schedule_with_warmup(optimizer, max(1, settings.steps // 20), steps)
    every = max(1, steps // 50)
    curve: list[dict[str, float]] = []
    losses: list[torch.Tensor] = []
    for step in range(steps):
        texts = settings.texts(step, probe, window)
        loss = model(
            torch.from_numpy(texts.inputs).to(model.device), targets=torch.from_numpy(texts.targets).to(model.device)
        ).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
        progress(1)
        if (step + 1) % every == 0 or step + 1 == steps:
            curve.append({"step": step + 1, "loss": float(torch.stack(losses).mean())})
            losses.clear()
    if not np.isfinite(curve[-1]["loss"]):
        raise UserError("The loss of training is not finite: choose a lower --learning-rate.")
    return curve


@torch.inference_mode()
def score_symbols(
    model: RecurrentForCausalLM,
    probe: SymbolProbe,
    texts: SymbolTexts,
    *,
    rows: int = 64,
    windows_per_call: int = 8,
    progress: Progress | None = None,
) -> ProbeScore:
    """Score sequences of one distance by the most likely answer symbol wherever an answer is due."""
    window = model.recurrence.window
    last = texts.inputs.shape[1] - window
    symbols = list(probe.answer_symbols)
    likelihoods, right = [], []
    for first in range(0, len(texts.inputs), rows):
        inputs = torch.from_numpy(texts.inputs[first : first + rows]).to(model.device)
        targets = torch.from_numpy(texts.targets[first : first + rows, last:])
        state = read_windows(model, inputs[:, :last], windows_per_call, progress)
        logits = model(input_ids=inputs[:, last:], state=state).logits[:, :, symbols].float().cpu()
        due = targets != IGNORED
        likelihoods.append(logits[due].double().log_softmax(dim=1).numpy())
        right.append(targets[due].numpy() - symbols[0])
        if progress is not None:
            progress(inputs.shape[0] * window)
    return score_of(np.concatenate(likelihoods), np.concatenate(right), len(texts.inputs))
