"""Probe jobs: a model on texts with hidden facts."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from recurrify.data.probes_questions import Answering
from recurrify.data.probes_text import TEXT_PROBES, Filler, TextProbe, check_length, text_probe, whole_distances
from recurrify.data.questions import load_questions
from recurrify.data.texts import Say, pick_device, read_text
from recurrify.evaluate.flops import memory_cost
from recurrify.evaluate.perplexity import evaluation_mode, half_precision, recurrence_settings
from recurrify.evaluate.probing import ProbeScore, score_texts
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.loading import load_model
from recurrify.results import provenance
from recurrify.settings import check_settings, setting

Progress = Callable[[int], None]
Bar = Callable[..., AbstractContextManager[Progress]]
"""Opens a progress bar, given a name and a total."""


@dataclass(frozen=True, kw_only=True)
class TextProbing:
    """Settings of a text probe."""

    model: str
    tasks: tuple[str, ...] = tuple(TEXT_PROBES)
    distances: tuple[int, ...] = (1, 2, 5, 10)
    """Windows between the facts and the question."""
    examples: int = setting(50, at_least=1)
    """At each distance."""
    haystack: str = "stdlib"
    """The text that facts are hidden in: any data source."""
    split: str = "test"
    window: int | None = None
    """Tokens in a window; None is the model's own."""
    recurrence: dict[str, Any] | None = None
    """The memory that a base model gets, untrained; None: none."""
    questions: str | None = None
    """A source of questions with paragraphs: adds the task of answering them."""
    seed: int = 0

    def __post_init__(self) -> None:
        whole_distances(self.distances)
        check_settings(self)
        for task in self.tasks:
            text_probe(task)

    @property
    def model_name(self) -> str:
        """The model, and the memory that was added to it."""
        if self.recurrence is None:
            return self.model
        given = [f"{name}={value}" for name, value in self.recurrence.items() if name not in ("mechanism", "window")]
        return " ".join([self.model, self.recurrence["mechanism"], *given])


def probe_model(
    settings: TextProbing, say: Say, bar: Bar, device: str = "auto", rows: int = 8, bf16: bool = False
) -> dict[str, Any]:
    """Score every task at every distance, and at distance 0 if facts and question fit into one window.

    `bf16` computes in bfloat16 on CUDA devices.
    """
    started = time.time()
    questions = [] if settings.questions is None else load_questions(settings.questions).questions
    model, tokenizer = load_model(settings.model, settings.recurrence)
    model = model.to(pick_device(device))
    found = []
    with evaluation_mode(model), recurrence_settings(model, settings.window, 0), half_precision(model, bf16):
        window = model.recurrence.window
        check_length(max(settings.distances), window)  # before the haystack is read, which can take long
        probes = [text_probe(task) for task in settings.tasks]
        if settings.questions is not None:
            probes.append(Answering(questions, room=min(settings.distances) * window))
        documents, checksum = _haystack(settings, probes, tokenizer, say)
        for probe in probes:
            filler = probe.filler(documents, tokenizer)
            found.append(_probe_texts(model, tokenizer, probe, filler, settings, bar, rows))
        cost = memory_cost(model)._asdict()
        recurrence = model.recurrence.to_dict()
    return {
        "kind": "probe",
        "name": settings.model_name,
        "mechanism": recurrence["mechanism"],
        "window": window,
        "trained_up_to": None,
        "tasks": found,
        "memory": cost,
        "provenance": provenance(
            {**asdict(settings), "recurrence": recurrence}, seed=settings.seed, data_checksum=checksum, started=started
        ),
    }


def _haystack(
    settings: TextProbing, probes: Sequence[TextProbe], tokenizer: Any, say: Say
) -> tuple[list[np.ndarray], str | None]:
    if not any(probe.needs_haystack for probe in probes):
        return [], None
    documents, checksum = read_text(settings.haystack, settings.split, tokenizer, say)
    return [document.ids for document in documents], checksum


def _probe_texts(
    model: RecurrentForCausalLM,
    tokenizer: Any,
    probe: TextProbe,
    filler: Filler,
    settings: TextProbing,
    bar: Bar,
    rows: int,
) -> dict[str, Any]:
    window = model.recurrence.window
    seeds = [(settings.seed, number) for number in range(settings.examples)]
    full = [0] if all(probe.fits_one_window(window, tokenizer, filler, seed) for seed in seeds) else []
    distances = [*full, *whole_distances(settings.distances)]
    scores: dict[int, ProbeScore] = {}
    with bar(probe.name, sum(distance + 1 for distance in distances) * window * settings.examples) as progress:
        for distance in distances:
            texts = (probe.make(distance, seed, window, tokenizer, filler) for seed in seeds)
            scores[distance] = score_texts(model, texts, rows=rows, progress=progress)
    return task_result(probe, scores)


def task_result(
    probe: Any, scores: Mapping[int, ProbeScore], form: str = "text", settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The entry of a task in a result, from its score at each distance; distance 0 is full context."""
    return {
        "task": probe.name,
        "form": form,
        "settings": dict(settings or {}),
        "asks": probe.asks,
        "chance": probe.chance_level,
        "guess": probe.guess_level,
        "full_context": scores[0]._asdict() if 0 in scores else None,
        "rows": [{"distance": distance, **score._asdict()} for distance, score in scores.items() if distance],
    }
