"""A small language model on a recurrent rule: trained on short sequences, scored at any length."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from recurrify.data import pick_device
from recurrify.results import provenance
from recurrify_papers.models.language import count_parameters, language_model
from recurrify_papers.runner import Say
from recurrify_papers.slides.rule_tasks import IGNORED, STREAMS, RuleSequences, rule_task

POSITIONS_AT_ONCE = 1 << 16
"""How many positions are scored together."""


@dataclass(frozen=True, kw_only=True)
class RuleTraining:
    """The settings of one training."""

    task: str
    """A name from `RULE_TASKS`."""
    arch: str
    """A name from `ARCHITECTURES`."""
    model: dict[str, Any] = field(default_factory=dict)
    """Settings of the architecture."""
    segment: int | None = None
    """Positions read at a time, with the state carried to the next segment without gradient; None: all."""
    length: int
    """The longest sequences of training."""
    steps: int
    batch: int
    learning_rate: float
    """The maximum, after a linear warm-up; a cosine decreases it to a twentieth."""
    warmup: int = 50
    """Steps of the warm-up."""
    seed: int
    """Of the initial weights and of the sequences: the same for every architecture."""

    def draw(self, part: str, *seeds: int) -> np.random.Generator:
        """Where the sequences of a part are drawn from."""
        return np.random.default_rng([STREAMS[part], self.seed, *seeds])


class RuleScore(NamedTuple):
    loss: float
    """In nats, the mean over all answers that were due."""
    accuracy: float


def rule_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Train a model on a rule and score it at every length."""
    own = dict(settings)
    lengths, valid, test = (own.pop(name) for name in ("lengths", "valid_sequences", "test_sequences"))
    training = RuleTraining(**own)
    with one_thread():
        model = train_on_rule(training, pick_device())
        found = validate_rule(model, training, valid)
        scores = {length: score_rule(model, training, length, test).accuracy for length in lengths}
    longest = max(lengths)
    say(f"{folder.name}: accuracy {found.accuracy:.3f} up to {training.length}, {scores[longest]:.3f} at {longest}")
    parameters = count_parameters(model)
    note = f"learning rate {training.learning_rate:g}; {parameters:,} parameters"
    return {
        "kind": "rule",
        "parameters": parameters,
        "loss": found.loss,
        "numbers": [
            {"metric": "accuracy", "at": float(length), "value": value, "note": note}
            for length, value in scores.items()
        ],
        "provenance": provenance(asdict(training), seed=training.seed),
    }


def levels_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """What the best constant guess and a short memory reach at every length."""
    task, memory = rule_task(settings["task"]), settings["length"]
    labels = {"chance": "best constant guess", "short_memory": f"best with the last {memory} symbols"}
    numbers = [
        {"label": labels[name], "model": labels[name], "metric": "accuracy", "at": float(length), "value": value}
        for length in settings["lengths"]
        for name, value in task.levels(length, memory)._asdict().items()
    ]
    return {"kind": "rule-levels", "numbers": numbers, "provenance": provenance(settings)}


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one core of a CPU: models this small are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_on_rule(training: RuleTraining, device: torch.device) -> nn.Module:
    """The trained model. All sequences are drawn in advance, so that the host never delays a step."""
    task = rule_task(training.task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        model = language_model(training.arch, task.vocabulary, **training.model)
    model.to(device).train()
    drawn = task.draw_up_to(training.steps * training.batch, training.length, training.draw("train"))
    inputs_NT, targets_NT = _on_device(drawn, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate, fused=True)
    schedule = get_cosine_with_min_lr_schedule_with_warmup(optimizer, training.warmup, training.steps, min_lr_rate=0.05)
    for inputs_BT, targets_BT in zip(inputs_NT.split(training.batch), targets_NT.split(training.batch), strict=True):
        logits_BTV = read_sequences(model, inputs_BT.long(), training.segment)
        loss = functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.long().flatten(), ignore_index=IGNORED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def read_sequences(model: nn.Module, ids_BT: Tensor, segment: int | None) -> Tensor:
    """The logits at every position; sequences are read whole or in segments with the state carried along."""
    pieces, state = [], None
    for ids_BQ in ids_BT.split(segment or ids_BT.shape[1], dim=1):
        logits_BQV, state = model(ids_BQ, state)
        pieces.append(logits_BQV)
    return torch.cat(pieces, dim=1)


def validate_rule(model: nn.Module, training: RuleTraining, sequences: int) -> RuleScore:
    """Score sequences like those of training, from their own stream."""
    drawn = rule_task(training.task).draw_up_to(sequences, training.length, training.draw("valid"))
    return _score(model, drawn, training.segment)


def score_rule(model: nn.Module, training: RuleTraining, length: int, sequences: int) -> RuleScore:
    """Score test sequences of one length by their last answer; in copying by all answers."""
    task = rule_task(training.task)
    # Each length has its own sequences: the shorter ones would otherwise be prefixes of the longer.
    drawn = task.draw(sequences, length, training.draw("test", length))
    return _score(model, RuleSequences(drawn.inputs, task.scored(drawn.targets)), training.segment)


@torch.no_grad()
def _score(model: nn.Module, drawn: RuleSequences, segment: int | None) -> RuleScore:
    inputs_NT, targets_NT = _on_device(drawn, next(model.parameters()).device)
    rows = max(1, POSITIONS_AT_ONCE // inputs_NT.shape[1])
    losses, right = [], []
    for inputs_BT, targets_BT in zip(inputs_NT.split(rows), targets_NT.split(rows), strict=True):
        due = targets_BT != IGNORED
        logits_AV = read_sequences(model, inputs_BT.long(), segment)[due]
        answers_A = targets_BT[due].long()
        losses.append(functional.cross_entropy(logits_AV, answers_A, reduction="none"))
        right.append(logits_AV.argmax(-1) == answers_A)
    return RuleScore(torch.cat(losses).double().mean().item(), torch.cat(right).double().mean().item())


def _on_device(drawn: RuleSequences, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(drawn.inputs).to(device), torch.from_numpy(drawn.targets).to(device)
