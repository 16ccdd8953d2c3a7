"""A small language model on a recurrent rule: trained on short sequences, scored at any length."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.data import pick_device
from recurrify.results import provenance
from recurrify_papers.finetune import OUT, finished
from recurrify_papers.models.language import count_parameters
from recurrify_papers.runner import Say, minutes_left
from recurrify_papers.scratch.run import new_model
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import State
from recurrify_papers.scratch.training import ScratchOutcome, fit
from recurrify_papers.slides.rule_tasks import IGNORED, RuleSequences, RuleTask, rule_task, stream

RECIPE: dict[str, Any] = {
    "warmup_steps": 50,
    "lowest_rate": 0.05,
    "max_grad_norm": 1.0,
    "precision": "fp32",
    "speed": "eager",
}
"""What all models share. Compiling takes longer than the training of a model this small."""
POSITIONS_AT_ONCE = 1 << 16
"""How many positions are scored together."""


class RuleScore(NamedTuple):
    loss: float
    """In nats, the mean over all answers that were due."""
    accuracy: float


def rule_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train a model on a rule and score it at every length.

    `segment` is how many positions are read at a time, with the state carried to the next segment without gradient;
    None reads whole sequences.
    """
    own = dict(settings)
    task, segment = rule_task(own.pop("task")), own.pop("segment")
    lengths, valid, test = (own.pop(name) for name in ("lengths", "valid_sequences", "test_sequences"))
    shared = {**RECIPE, "out": str(folder / OUT), "data": settings["task"], "max_minutes": minutes_left()}
    run = ScratchSettings(settings=own.pop("model"), **shared, **own)
    with one_thread():
        model = new_model(run, run.model_settings, task.vocabulary).to(pick_device())
        if finished(vars(train_on_rule(model, task, segment, run))) is None:
            return None
        found = score_rule(model, task.draw_up_to(valid, run.length, stream("valid", run.seed)), segment)
        drawn = {length: task.draw_test(test, length, run.seed) for length in lengths}
        scores = {length: score_rule(model, test_part, segment).accuracy for length, test_part in drawn.items()}
    shutil.rmtree(run.out)
    longest = max(lengths)
    say(f"{folder.name}: accuracy {found.accuracy:.3f} up to {run.length}, {scores[longest]:.3f} at {longest}")
    parameters = count_parameters(model)
    note = f"learning rate {run.learning_rate:g}; {parameters:,} parameters"
    return {
        "kind": "rule",
        "parameters": parameters,
        "loss": found.loss,
        "numbers": [
            {"metric": "accuracy", "at": float(length), "value": value, "note": note}
            for length, value in scores.items()
        ],
        "provenance": provenance(settings, seed=run.seed),
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


class RuleBatches:
    """Sequences and their targets, (2, B, T). All are drawn in advance, so that the host never delays a step."""

    def __init__(self, drawn: RuleSequences, batch: int, device: torch.device) -> None:
        self.both_2NT, self.batch, self.device = _on_device(drawn, device), batch, device
        self.segments = self.both_2NT.shape[1] // batch

    def segment(self, number: int) -> Tensor:
        return self.both_2NT[:, number * self.batch : (number + 1) * self.batch]


def train_on_rule(model: nn.Module, task: RuleTask, segment: int | None, run: ScratchSettings) -> ScratchOutcome:
    """Train in place on sequences up to `run.length`; they depend on the seed and are the same for every model."""
    device = next(model.parameters()).device
    drawn = task.draw_up_to(run.steps * run.batch, run.length, stream("train", run.seed))
    batches = RuleBatches(drawn, run.batch, device)
    return fit(model, batches, run, loss=partial(_loss, segment=segment), folder=Path(run.out))


def _loss(model: nn.Module, both_2BT: Tensor, state: State, segment: int | None) -> tuple[Tensor, State]:
    """Each batch has sequences of its own, so the state stays the first one."""
    inputs_BT, targets_BT = both_2BT
    logits_BTV = read_sequences(model, inputs_BT, segment)
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED), state


def read_sequences(model: nn.Module, ids_BT: Tensor, segment: int | None) -> Tensor:
    """The logits at every position; sequences are read whole or in segments with the state carried along."""
    pieces, state = [], None
    for ids_BQ in ids_BT.split(segment or ids_BT.shape[1], dim=1):
        logits_BQV, state = model(ids_BQ, state)
        pieces.append(logits_BQV)
    return torch.cat(pieces, dim=1)


@torch.no_grad()
def score_rule(model: nn.Module, drawn: RuleSequences, segment: int | None) -> RuleScore:
    """The score of all answers that are due."""
    both_2NT = _on_device(drawn, next(model.parameters()).device)
    rows = max(1, POSITIONS_AT_ONCE // both_2NT.shape[2])
    losses, right = [], []
    for inputs_BT, targets_BT in (both.long() for both in both_2NT.split(rows, dim=1)):
        due = targets_BT != IGNORED
        logits_AV = read_sequences(model, inputs_BT, segment)[due]
        answers_A = targets_BT[due]
        losses.append(functional.cross_entropy(logits_AV, answers_A, reduction="none"))
        right.append(logits_AV.argmax(-1) == answers_A)
    return RuleScore(torch.cat(losses).double().mean().item(), torch.cat(right).double().mean().item())


def _on_device(drawn: RuleSequences, device: torch.device) -> Tensor:
    return torch.stack([torch.from_numpy(part) for part in drawn]).to(device)
