"""Whether recurrence pays on a model with rotary positions, compared with overlap, kept keys and values, and
sliding-window attention."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from recurrify.mechanisms import mechanism_config
from recurrify_papers.beyond.matching import Comparison
from recurrify_papers.beyond.memories import OURS, Memories, memory_tokens
from recurrify_papers.experiment import Chart, Experiment, gain_headline
from recurrify_papers.plan import Entry, Plan, against_first, model_of
from recurrify_papers.sizes import CARRY, PLAIN, Settings, Size, tail

SINKS = 4
ROTARY: dict[str, Any] = {
    "model": "HuggingFaceTB/SmolLM2-135M",
    "names": ("carry-1", "tail-16", "tail-64", "memory-tokens-16", "kv-16", "kv-64", "kv-window", "sliding-window"),
    "seeds": (0, 1),
    "rates": (1e-5, 3e-5, 1e-4),
    "added_rate": 5.0,
    "training": {},
    "tuning_tokens": None,
    "test_tokens": None,
    "window": None,
}
"""`model` None makes a small Llama with random weights; `window` None is the size's, and must be at most half of the
model's positions, so that a whole window can be kept."""


def settings_of(size: Size) -> dict[str, Any]:
    """The size's settings of this experiment."""
    return ROTARY | dict(size.own.get("rotary", {}))


def rotary_plan(size: Size) -> Plan:
    """A plan with the rotary model in place of the size's base."""
    own = settings_of(size)
    size = replace(
        size,
        base=own["model"] or "made here",
        window=own["window"] or size.window,
        training={**size.training, **own["training"]},
        rates=own["rates"],
        added_rate=own["added_rate"],
        tuning_tokens=own["tuning_tokens"],
        seeds=own["seeds"],
        test_tokens=own["test_tokens"],
    )
    return Plan(size)


def mechanisms(size: Size, window: int) -> dict[str, Settings]:
    """Those that a window has positions for."""
    known: dict[str, Settings] = {
        "carry-1": CARRY,
        "tail-16": tail(16),
        "tail-64": tail(64),
        "memory-tokens-16": memory_tokens(16),
        "kv-16": {"mechanism": "kv", "keep": 16},
        "kv-64": {"mechanism": "kv", "keep": 64},
        "kv-window": {"mechanism": "kv", "keep": window - SINKS},
        "sliding-window": {"mechanism": "kv", "keep": window - SINKS, "sliding": True},
    }
    fits = [name for name in settings_of(size)["names"] if known[name].get("keep", 0) + SINKS <= window]
    return {"plain": PLAIN} | {name: known[name] for name in fits if known[name].get("tail", 0) <= window}


def base_of(plan: Plan, outer: Size) -> Any:
    """The rotary model, or the run that makes one."""
    model = settings_of(outer)["model"]
    if model is not None:
        return model
    made = plan.run("beyond.rotary_base:make_base", "rotary-base", like=outer.base, window=plan.size.window)
    return model_of(made)


def rotary_entries(memories: Memories, trained: bool) -> list[Entry]:
    """Everything fine-tuned, or the base as it is with what needs no training."""
    found = []
    for name, recurrence in memories.known.items():
        rival = not mechanism_config(recurrence["mechanism"]).learns
        if trained:
            runs = memories.trained("books", name, memories.size.seeds)
            found += memories.entries("books", name, runs, rival=rival)
        elif rival:
            runs = memories.untrained("books", name)
            found += memories.entries("books", name, runs, label=f"{name}-untrained", rival=rival)
    return against_first(found)


def comparison(size: Size) -> Comparison:
    """Everything fine-tuned, and what needs no training."""
    plan = rotary_plan(size)
    slug = re.sub(r"[^a-z0-9]+", "-", Path(settings_of(size)["model"] or "rotary").name.lower()).strip("-")
    known = mechanisms(size, plan.size.window)
    memories = Memories(plan, known, slug, base_of(plan, size), tuned_on="books", tuning=plan.shorter())
    trained, untrained = (rotary_entries(memories, trained) for trained in (True, False))
    return Comparison(memories, [trained], [untrained])


EXPERIMENTS = (
    Experiment(
        name="rotary",
        title="Whether recurrence pays on a model with rotary positions",
        source=OURS,
        runs=lambda size: comparison(size).runs(),
        table=lambda size, results: comparison(size).table(results),
        differences=("The papers' models have absolute positions; model, mechanisms and budgets are ours.",),
        headlines=(
            gain_headline("kv-window", "Keeping the keys and values of a window lowers test perplexity by {value}."),
            gain_headline("carry-1", "The paper's mechanism lowers it by {value}."),
        ),
        chart=Chart(x="full_flops", metric="perplexity_per_word", split="test"),
        ours=True,
    ),
)
