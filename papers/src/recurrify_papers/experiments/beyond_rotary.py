"""Whether recurrence pays on a model with rotary positions, where its rivals are overlap, kept keys and values, and
sliding-window attention."""

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from recurrify.errors import UserError
from recurrify.families import family_of
from recurrify.mechanisms.kv import KVConfig
from recurrify.modeling.loading import load_model
from recurrify_papers.experiments.beyond import (
    OURS,
    all_overlaps,
    chosen_rate,
    family,
    finish_in_turn,
    memory_row,
    shorter,
    told_rates,
    untouched,
)
from recurrify_papers.experiments.beyond_rivals import at_overlaps, matched_overlaps, overlaps_by_seed, with_rivals
from recurrify_papers.experiments.beyond_sizes import PLAIN, WHOLE_WINDOW, Recurrence
from recurrify_papers.experiments.catalogue import Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.unit import Unit

KV = "kv"
RIVALS = (PLAIN, KV, "sliding kv")
"""What needs no recurrence that is learned."""
MADE_HERE = "rotary-base"


# ---- the model -------------------------------------------------------------------------------------------


def model_name(lab: Lab) -> str:
    """The size's rotary model, or the folder of one with random weights, made where the size names none."""
    if lab.size.beyond.rotary_model is not None:
        return lab.size.beyond.rotary_model
    folder = lab.folder / MADE_HERE
    if not (folder / "config.json").is_file():
        make_base(folder, lab.base(), lab.size.window)
    return str(folder)


def make_base(folder: Path, like: str, window: int) -> None:
    """A small Llama that knows nothing yet, with the tokenizer of another model."""
    tokenizer = load_model(like)[1]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4 * window,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    tokenizer.save_pretrained(folder)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@lru_cache(maxsize=4)
def positions(name: str) -> int:
    """Of a rotary model, as many as matter here; any other model is refused."""
    model = load_model(name)[0]
    if model.mechanism is not None or not family_of(model.base.config).rotary:
        what = "recurrent already" if model.mechanism is not None else "a model without rotary positions"
        raise UserError(f"{name!r} is {what}: `rotary` compares on a base such as HuggingFaceTB/SmolLM2-135M.")
    return model.recurrence.window


def rotary_lab(lab: Lab) -> Lab:
    """The same size with the rotary model in place of its own base; windows are at most half of its positions, so that
    a whole window can be kept before another."""
    name, beyond = model_name(lab), lab.size.beyond
    size = replace(
        lab.size,
        base=name,
        window=min(lab.size.window, positions(name) // 2),
        training={**lab.size.training, **beyond.rotary_training},
        candidates=beyond.rotary_candidates,
        added_rate=beyond.rotary_added_rate,
        tuning_tokens=beyond.rotary_tuning_tokens,
        seeds=beyond.rotary_seeds,
        test_tokens=beyond.rotary_test_tokens,
    )
    return replace(lab, size=size, rates={})


# ---- runs ------------------------------------------------------------------------------------------------


def entrants(lab: Lab) -> dict[str, Recurrence]:
    """The mechanisms that windows of this size have room for; `lab` is one of the rotary model's from here on."""
    found: dict[str, Recurrence] = {PLAIN: {"mechanism": "none"}}
    window = lab.size.window
    for name, recurrence in lab.size.beyond.rotary.items():
        if recurrence.get("keep") == WHOLE_WINDOW:
            recurrence = {**recurrence, "keep": window - recurrence.get("sinks", KVConfig.sinks)}
        kept = recurrence["keep"] + recurrence.get("sinks", KVConfig.sinks) if "keep" in recurrence else 0
        if max(kept, recurrence.get("tail", 0)) <= window:
            found[name] = recurrence
    return found


def rotary_unit(lab: Lab, name: str, rate: float, seed: int, label: str = "", **settings: Any) -> Unit:
    slug = re.sub(r"[^a-z0-9]+", "-", Path(lab.base()).name.lower()).strip("-")
    kind = PLAIN if name == PLAIN else "best"
    label = f"{slug}-{label}{name}"
    return lab.unit(
        "books", kind, seed=seed, label=label, recurrence=entrants(lab)[name], learning_rate=rate, **settings
    )


def rotary_tuning(lab: Lab, name: str) -> dict[float, Unit]:
    """The runs that choose a learning rate, from the same candidates for all."""
    known = entrants(lab)
    first = next(one for one in known if family(known[one]) == family(known[name]))
    wanted = [lab.wanted("valid", 0)]
    return {
        rate: rotary_unit(lab, first, rate, lab.size.seeds[0], "rate-", **shorter(lab)).with_scores(wanted)
        for rate in lab.size.candidates
    }


def rate_units(lab: Lab) -> list[Unit]:
    return [unit for name in entrants(lab) for unit in rotary_tuning(lab, name).values()]


def units_of(lab: Lab, name: str) -> list[Unit]:
    rate = chosen_rate(rotary_tuning(lab, name))
    return [] if rate is None else [rotary_unit(lab, name, rate, seed) for seed in lab.size.seeds]


def untouched_unit(lab: Lab, name: str) -> Unit:
    """The base as it is: kept keys and values need no training."""
    rate, seed = lab.size.candidates[0], lab.size.seeds[0]
    settings = untouched(rotary_unit(lab, name, rate, seed), "untouched-")
    return rotary_unit(lab, name, rate, seed, **settings)


def needs_no_training(lab: Lab) -> list[str]:
    return [name for name, recurrence in entrants(lab).items() if recurrence["mechanism"] in ("none", KV)]


def main_units(lab: Lab) -> list[Unit]:
    """Plain windows at every overlap that something is held against, those of the base as it is at the usual ones."""
    units = units_by_name(lab)
    at = plain_overlaps(lab, units)
    tuned = [
        unit.with_scores(at_overlaps(lab, at[unit.settings.seed] if name == PLAIN else [0]))
        for name, own in units.items()
        for unit in own
    ]
    bare = [
        untouched_unit(lab, name).with_scores(at_overlaps(lab, overlaps(lab) if name == PLAIN else [0]))
        for name in needs_no_training(lab)
    ]
    return [*tuned, *bare]


def units_by_name(lab: Lab) -> dict[str, list[Unit]]:
    """Those that have a learning rate."""
    return {name: units for name in entrants(lab) if (units := units_of(lab, name))}


def overlaps(lab: Lab) -> list[int]:
    return [overlap for overlap in all_overlaps(lab) if overlap < lab.size.window]


def plain_overlaps(lab: Lab, units: dict[str, list[Unit]]) -> dict[int, list[int]]:
    """The usual ones for the first seed, and those that match a memory that is learned."""
    return overlaps_by_seed(units, overlaps(lab), learned(lab, units))


def learned(lab: Lab, units: dict[str, list[Unit]]) -> list[str]:
    return [name for name in units if name not in needs_no_training(lab)]


# ---- rows ------------------------------------------------------------------------------------------------


def rotary_rows(outer: Lab) -> tuple[Rows, list[str]]:
    lab = rotary_lab(outer)
    model = outer.size.beyond.rotary_model or "a small Llama with random weights, to check the machinery"
    failed = finish_in_turn(lab, [lambda: rate_units(lab), lambda: main_units(lab)])
    outer.failures, outer.stopped = lab.failures, lab.stopped  # what the command goes by
    tuned, lacking = tuned_rows(lab)
    bare, more = bare_rows(lab)
    return [{**row, "model": model} for row in (*tuned, *bare)], [*lacking, *more, *failed]


def tuned_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """Everybody fine-tuned, on the same seeds."""
    rows: Rows = []
    missing: list[str] = []
    units: dict[str, list[Unit]] = {}
    found = units_by_name(lab)
    at = plain_overlaps(lab, found)
    matched = matched_overlaps(found, learned(lab, found))
    every = sorted({overlap for own in at.values() for overlap in own} or overlaps(lab))
    for name, overlap in [(PLAIN, overlap) for overlap in every] + [(one, 0) for one in entrants(lab) if one != PLAIN]:
        row = memory_row("books", name, found[name], found[PLAIN], overlap) if {name, PLAIN} <= set(found) else None
        if row is None:
            missing.append(f"{name}, overlap {overlap}")
            continue
        wanted = lab.size.seeds if name != PLAIN else [seed for seed in at if overlap in at[seed]]
        missing += [f"{name}, overlap {overlap}, seed {seed}" for seed in wanted if seed not in row["seeds"]]
        matches = matched.get(overlap, []) if name == PLAIN else []
        rates = told_rates(rotary_tuning(lab, name))
        rows.append({**row, "trained": True, "matches": matches, "rates": rates})
        units[row["row"]] = found[name]
    return with_rivals(rows, units, lambda row: row["kind"] in RIVALS), missing


def bare_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """The base as it is, with what needs no training."""
    rows: Rows = []
    missing: list[str] = []
    plain = untouched_unit(lab, PLAIN)
    kept = [(name, 0) for name in needs_no_training(lab) if name != PLAIN]
    for name, overlap in [*((PLAIN, overlap) for overlap in overlaps(lab)), *kept]:
        row = memory_row("books", name, [untouched_unit(lab, name)], [plain], overlap)
        if row is None:
            missing.append(f"{name}, overlap {overlap}, not fine-tuned")
        else:
            rows.append({**row, "trained": False, "rates": []})
    return rows, missing


register(
    Experiment(
        name="rotary",
        title="Whether recurrence pays on a model with rotary positions",
        source=OURS,
        one_recipe=False,
        layout="mechanisms",
        units=lambda lab: [],
        rows=rotary_rows,
        after=Stage.NOTHING,
        differences=lambda _: ("The papers' models have absolute positions; model, mechanisms and budgets are ours.",),
    )
)
