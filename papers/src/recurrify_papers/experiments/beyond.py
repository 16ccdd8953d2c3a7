"""What the experiments beyond the papers share: a learning rate for each mechanism, rounds of runs, and rows that tell
what a memory takes and what it gains."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from recurrify.evaluate.bootstrap import relative_gain
from recurrify.results import load_result
from recurrify_papers.cost import validation_curve
from recurrify_papers.experiments.beyond_sizes import PLAIN
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.rows import SPLITS, perplexity_row
from recurrify_papers.experiments.unit import Unit, Wanted

NAMES = ("mechanisms", "starts", "frozen", "tokens", "unfamiliar", "rotary")
"""The experiments beyond the papers, what matters most first; the last two need models of their own."""
UNTRAINED = "-untrained"
"""Behind the name of what is scored as it starts."""
OURS = "ours; not published"
TEST = "test"
"""The split on which rivals are compared."""


def family(recurrence: Mapping[str, Any]) -> str:
    """What shares a learning rate: a mechanism at any size."""
    kinds = [word for word in ("gated", "sliding") if recurrence.get(word)]
    return " ".join([*kinds, str(recurrence["mechanism"])])


# ---- learning rates --------------------------------------------------------------------------------------


def told_rates(tried: Mapping[float, Unit]) -> list[dict[str, Any]]:
    """What a learning rate was chosen from."""
    return [{"learning_rate": rate, "valid_loss": loss} for rate, loss in valid_losses(tried).items()]


def chosen_rate(tried: Mapping[float, Unit]) -> float | None:
    """The one that validates best; None as long as one of them has not been run."""
    losses = valid_losses(tried)
    return min(losses, key=lambda rate: losses[rate]) if losses and len(losses) == len(tried) else None


def valid_losses(tried: Mapping[float, Unit]) -> dict[float, float]:
    found = {rate: unit.evaluation("valid", 0) for rate, unit in tried.items()}
    return {rate: one.total_nll / int(one.tokens.sum()) for rate, one in found.items() if one is not None}


def shorter(lab: Lab) -> dict[str, Any]:
    """What makes a run one of those that only choose learning rates."""
    return {} if lab.size.tuning_tokens is None else {"max_tokens": lab.size.tuning_tokens}


def tuning(lab: Lab, of: str) -> dict[float, Unit]:
    """The runs that choose a family's learning rate: as for the kinds of the paper's tables, on wiki text. The one that
    is chosen is a row's own."""
    name = next(name for name in (PLAIN, *lab.size.beyond.mechanisms) if family(memory_of(lab, name)) == of)
    return {
        rate: beyond_unit(lab, "wiki", name, rate, lab.size.seeds[0]).with_scores([lab.wanted("valid", 0)])
        for rate in lab.size.candidates
    }


def rates_of(lab: Lab, names: Iterable[str]) -> list[Unit]:
    """The runs that choose the learning rates of these, and of plain windows, which all are held against."""
    families = dict.fromkeys(family(memory_of(lab, name)) for name in (PLAIN, *names))
    by_family = [list(tuning(lab, of).values()) for of in families]
    # One of each first: what is compiled for it is there when the others begin.
    return [unit for rates in zip(*by_family, strict=True) for unit in rates]


# ---- runs ------------------------------------------------------------------------------------------------


def differences(lab: Lab, compared: Sequence[str] = ()) -> Sequence[str]:
    """How these experiments differ from what was published; which mechanisms were `compared`, where not all were."""
    told = lab.size.beyond.differences or lab.size.differences
    if lab.size.beyond.only is None or not compared:
        return told
    return (*told, f"Compared are plain windows and {', '.join(compared)} alone (--only).")


def memory_of(lab: Lab, name: str) -> Mapping[str, Any]:
    return {"mechanism": "none"} if name == PLAIN else lab.size.beyond.mechanisms[name]


def training_of(lab: Lab, corpus: str = "books") -> dict[str, Any]:
    """Settings of every run, which need not be those of the paper's tables."""
    size, beyond = lab.size, lab.size.beyond
    wiki = {} if corpus == "books" else size.wiki_training | beyond.wiki_training
    return size.training | beyond.training | wiki


def beyond_unit(
    lab: Lab,
    corpus: str,
    name: str,
    rate: float,
    seed: int,
    label: str | None = None,
    changed: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Unit:
    """A run of a mechanism of the size's by its name, `changed` or not, or of plain windows."""
    return lab.unit(
        corpus,
        PLAIN if name == PLAIN else "best",
        seed=seed,
        label=f"beyond-{label or name}",
        recurrence={**memory_of(lab, name), **(changed or {})},
        learning_rate=rate,
        **training_of(lab, corpus) | settings,
    )


def mechanism_unit(lab: Lab, corpus: str, name: str, seed: int, times: float = 1.0, **settings: Any) -> Unit | None:
    """The same at its own learning rate, or so many times that, also in longer windows or as it starts; None before the
    rate is chosen."""
    usual = usual_name(lab, name)
    chosen = chosen_rate(tuning(lab, family(memory_of(lab, usual))))
    if chosen is None:
        return None
    rate = times * chosen
    settings = {"label": usual, **longer_settings(lab, corpus, name), **settings}
    unit = beyond_unit(lab, corpus, usual, rate, seed, **settings)
    if name in untrained_names(lab):
        return beyond_unit(lab, corpus, usual, rate, seed, **settings | untouched(unit, name))
    return unit


def longer_names(lab: Lab) -> dict[str, str]:
    """What is trained in longer windows too, by its name there."""
    beyond = lab.size.beyond
    return {f"{name}-w{beyond.longer_window}": name for name in beyond.compared(beyond.longer)}


def untrained_names(lab: Lab) -> dict[str, str]:
    """What is scored as it starts too, by its name there."""
    beyond = lab.size.beyond
    return {f"{name}{UNTRAINED}": name for name in beyond.compared(beyond.untrained)}


def usual_name(lab: Lab, name: str) -> str:
    """As it is called in windows of the usual length, trained."""
    return (longer_names(lab) | untrained_names(lab)).get(name, name)


def longer_settings(lab: Lab, corpus: str, name: str) -> dict[str, Any]:
    """What sets a run in longer windows apart."""
    if name not in longer_names(lab):
        return {}
    window = lab.size.beyond.longer_window
    return {"window": window, "windows": lab.windows_of(training_of(lab, corpus), window)}


def finish_in_turn(lab: Lab, rounds: Iterable[Callable[[], list[Unit]]]) -> list[str]:
    """Each round when the one before is there, which decides on its runs; a sentence for each run that failed."""
    failures: list[str] = []
    for units in rounds:
        outcome = lab.finish(units())
        failures += outcome.failures
        if not outcome.finished:
            break
    for failure in failures:
        lab.say(failure)
    return failures


def all_overlaps(lab: Lab) -> list[int]:
    """At which plain windows are scored."""
    return sorted({*lab.size.overlaps, *lab.size.plain_overlaps})


def untouched(unit: Unit, label: str) -> dict[str, Any]:
    """Settings of a run that leaves the base as it is: a warm-up begins with a learning rate of nothing."""
    return {"label": label, "max_tokens": 1, "warmup_steps": max(1, unit.settings.warmup_steps), "compile": "off"}


# ---- rows ------------------------------------------------------------------------------------------------


def memory_row(
    corpus: str,
    name: str,
    units: Sequence[Unit],
    plain: Sequence[Unit],
    overlap: int = 0,
    splits: Sequence[str] = SPLITS,
) -> dict[str, Any] | None:
    """A row of perplexities, its gain over plain windows without overlap, and what it takes beside these."""
    recurrence = units[0].settings.recurrence
    kind = PLAIN if recurrence["mechanism"] == "none" else family(recurrence)
    row = perplexity_row(kind, units, plain, overlap, splits=splits, label=name)
    if row is None:
        return None
    done = next(unit for unit in units if unit.name in row["runs"])
    run = load_result(done.run_file)
    bare = _bare_flops(plain, splits[0])
    if bare is None:
        bare = row["full_flops_per_token"] - run["memory"]["extra_flops_per_token"]
    if kind == PLAIN and (overlap or units != plain):
        row["gain"] = {split: gain_over(plain, 0, units, overlap, split) for split in splits}
    return {
        **row,
        "corpus": corpus,
        "state_floats": run["memory"]["state_floats"],
        "added_parameters": run["memory"]["added_parameters"],
        "extra_flops_per_token": row["full_flops_per_token"] - bare,
        "extra_share": row["full_flops_per_token"] / bare - 1,
        "learning_rate": done.settings.learning_rate,
        "added_learning_rate": done.settings.added_learning_rate,
        "tokens": run["tokens"],
        "kept_tokens": kept_tokens(run),
    }


def kept_tokens(run: Mapping[str, Any]) -> float:
    """After how many of a run's tokens its weights were taken: those that validated best, the first of them."""
    curve = validation_curve(run["history"], run["tokens"] / run["steps"])
    return min(curve, key=lambda point: point[1])[0] if curve else run["tokens"]


def _bare_flops(plain: Sequence[Unit], split: str) -> float | None:
    """FLOPs per token, all counted, of plain windows without overlap; None before they have been scored."""
    done = next((unit for unit in plain if unit.evaluation(split, 0) is not None), None)
    return None if done is None else float(load_result(done.score_file(Wanted(split, 0, None)))["full_flops_per_token"])


def control(lab: Lab) -> Wanted:
    """The score that tells memory from what added weights learn besides."""
    return lab.wanted(TEST, 0)._replace(exchanged=True)


def gain_by_memory(units: Sequence[Unit]) -> dict[str, Any] | None:
    """The gain with a document's own memory over the same models with memories of other documents."""
    pairs = [(unit.evaluation(TEST, 0, exchanged=True), unit.evaluation(TEST, 0)) for unit in units]
    both = [(others, own) for others, own in pairs if others is not None and own is not None]
    if not both:
        return None
    gain = relative_gain([others for others, _ in both], [own for _, own in both], paired_seeds=True)
    return {**asdict(gain), "seeds": len(both)}


def gain_over(
    rival: Sequence[Unit], rival_overlap: int, units: Sequence[Unit], overlap: int, split: str = TEST
) -> dict[str, Any] | None:
    """The gain over runs that may overlap otherwise: the same tokens are scored all the same."""
    theirs = {unit.settings.seed: unit.evaluation(split, rival_overlap) for unit in rival}
    ours = {unit.settings.seed: unit.evaluation(split, overlap) for unit in units}
    both = [(one, other) for seed, other in ours.items() if (one := theirs.get(seed)) is not None and other is not None]
    if not both:
        return None
    gain = relative_gain([one for one, _ in both], [other for _, other in both], paired_seeds=True)
    return {**asdict(gain), "seeds": len(both)}
