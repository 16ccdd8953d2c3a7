"""A small language model on a recurrent rule: trained on short sequences, scored at any length."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify import UserError
from recurrify.data import pick_device
from recurrify.results import load_result, provenance
from recurrify_papers.models.language import count_parameters, language_model
from recurrify_papers.runner import RESULT_FILE, Say
from recurrify_papers.slides.rule_tasks import IGNORED, RuleSequences, rule_stream, rule_task

POSITIONS_AT_ONCE = 1 << 16
"""How many positions are scored together."""
LAST_RATE = 0.05
"""Where the learning rate ends, as a share of its maximum."""


def rule_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Train a model on a rule and score it at every length."""
    own = dict(settings)
    lengths, valid, test = (own.pop(name) for name in ("lengths", "valid_sequences", "test_sequences"))
    if isinstance(own["learning_rate"], dict):
        own["learning_rate"] = _chosen_rate(own["learning_rate"]["best_of"], folder.parent)
    training = RuleTraining(**own)
    with one_thread():
        model = train_on_rule(training, pick_device())
        found = validate_rule(model, training, valid)
        scores = {length: score_rule(model, training, length, test) for length in lengths}
    longest = max(lengths)
    at_longest = f"{scores[longest].accuracy:.3f} at {longest}"
    say(f"{folder.name}: accuracy {found.accuracy:.3f} up to {training.length}, {at_longest}")
    return {
        "kind": "rule",
        "parameters": count_parameters(model),
        "valid": found._asdict(),
        "test": {str(length): score._asdict() for length, score in scores.items()},
        "levels": {str(length): _levels(training.task, length, training.length) for length in lengths},
        "provenance": provenance(asdict(training), seed=training.seed),
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one core of a CPU: models this small lose time with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _levels(task: str, length: int, memory: int) -> dict[str, float]:
    """What the best constant guess reaches, and a memory of the last symbols."""
    rule = rule_task(task)
    return {"chance": rule.chance_level(length), "short_memory": rule.short_memory_level(length, memory)}


def _chosen_rate(tried: dict[str, float], runs: Path) -> float:
    """The rate with the lowest validation loss; a loss that is not finite was saved as null."""
    losses = {name: load_result(runs / name / RESULT_FILE)["valid"]["loss"] for name in tried}
    known = {name: loss for name, loss in losses.items() if loss is not None}
    if not known:
        raise UserError("The loss is not finite at any learning rate.")
    return tried[min(known, key=lambda name: known[name])]


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
    """Positions read at a time, the state carried from each to the next without gradient; None: all."""
    length: int = 40
    """The longest sequences of training."""
    steps: int = 1500
    """Updates of the weights."""
    batch: int = 128
    """Sequences in a step."""
    learning_rate: float = 1e-3
    """After a linear warm-up; a cosine decreases it again."""
    warmup: int = 50
    """Steps of the warm-up."""
    clip: float = 1.0
    """Gradient-norm clipping."""
    seed: int = 0
    """Of the initial weights and of the sequences: the same for every architecture."""

    def __post_init__(self) -> None:
        for name in ("length", "steps", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"`{name}` must be at least 1: got {getattr(self, name)}.")
        if self.segment is not None and self.segment < 1:
            raise UserError(f"`segment` must be at least 1, or None for whole sequences: got {self.segment}.")
        if self.learning_rate <= 0:
            raise UserError(f"`learning_rate` must be above 0: got {self.learning_rate}.")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2)


class RuleScore(NamedTuple):
    loss: float
    """In nats, the mean over all answers that were due."""
    accuracy: float
    answers: int


def train_on_rule(training: RuleTraining, device: torch.device) -> nn.Module:
    """The trained model. All sequences are drawn in advance, so that the host never delays a step."""
    task = rule_task(training.task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        model = language_model(training.arch, task.vocabulary, **training.model)
    model.to(device).train()
    chance = rule_stream("train", training.seed)
    drawn = task.draw_up_to(training.steps * training.batch, training.length, chance)
    inputs_NT, targets_NT = _on_device(drawn, device)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=training.learning_rate, fused=True)
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step)
        rows = slice(step * training.batch, (step + 1) * training.batch)
        logits_BTV = read_sequences(model, inputs_NT[rows].long(), training.segment)
        loss = functional.cross_entropy(
            logits_BTV.flatten(0, 1), targets_NT[rows].long().flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, training.clip)
        optimizer.step()
    return model.eval()


def read_sequences(model: nn.Module, ids_BT: Tensor, segment: int | None) -> Tensor:
    """The logits at every position; sequences are read whole or in segments with the state carried along."""
    pieces, state = [], None
    for ids_BQ in ids_BT.split(segment or ids_BT.shape[1], dim=1):
        logits_BQV, state = model(ids_BQ, state)
        pieces.append(logits_BQV)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def validate_rule(model: nn.Module, training: RuleTraining, sequences: int) -> RuleScore:
    """On sequences like those of training, from a stream of their own."""
    drawn = rule_task(training.task).draw_up_to(sequences, training.length, rule_stream("valid", training.seed))
    return _score(model, drawn, training.segment)


def score_rule(model: nn.Module, training: RuleTraining, length: int, sequences: int) -> RuleScore:
    """On test sequences of one length, by their last answer; in copying by all answers."""
    task = rule_task(training.task)
    # Each length has its own sequences: the shorter ones would otherwise be prefixes of the longer.
    drawn = task.draw(sequences, length, rule_stream("test", training.seed, length))
    return _score(model, RuleSequences(drawn.inputs, task.last_answers(drawn.targets)), training.segment)


@torch.no_grad()
def _score(model: nn.Module, drawn: RuleSequences, segment: int | None) -> RuleScore:
    device = next(model.parameters()).device
    inputs_NT, targets_NT = _on_device(drawn, device)
    rows = max(1, POSITIONS_AT_ONCE // inputs_NT.shape[1])
    losses = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    for inputs_BT, targets_BT in zip(inputs_NT.split(rows), targets_NT.split(rows), strict=True):
        due = targets_BT != IGNORED
        logits_AV = read_sequences(model, inputs_BT.long(), segment)[due]
        answers_A = targets_BT[due].long()
        losses += functional.cross_entropy(logits_AV, answers_A, reduction="sum")
        right += (logits_AV.argmax(-1) == answers_A).sum()
    answers = int((targets_NT != IGNORED).sum())
    return RuleScore(losses.item() / answers, right.item() / answers, answers)


def _on_device(drawn: RuleSequences, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(drawn.inputs).to(device), torch.from_numpy(drawn.targets).to(device)
