"""The time that a generated token takes, from a text's beginning to far past the model's context.

All is timed by what arrives: a streamer notes when each token comes, so reading the prompt does not count. As many
tokens are generated as a window has, so that each measurement holds one step from window to window. Graphs are captured
anew in every text: tokens during whose step that happens are not timed, and what they took is told apart.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, set_seed
from transformers.generation.streamers import BaseStreamer

from recurrify.modeling.generation import RecurrentCache
from recurrify.speed.graphed_generation import captured, graph_generation
from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.generation_check import check_of, check_steps
from recurrify_papers.bench.models import base_model, random_tokens, recurrent_model, rotary_model, rotary_sizes
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import (
    NO_TIME,
    WRONG,
    NotMeasuredError,
    Row,
    Timed,
    ratio,
    still_missing,
    tried,
    whole_rounds,
)

OVERLAPS = (0.5, 0.9)
"""Shares of a window that are run again when it is full."""
ANEW_TOKENS = 8
"""Where every token runs a whole window, few tokens will do."""
ROUNDS = 3
"""Interleaved repeats: each of them is a whole window of tokens."""
THEIRS = "transformers' generate"
PLAINLY = "ours, carry"
GRAPHS = "ours, carry, graphs"
ROTARY = "rotary: ours, kept keys and values"
ROTARY_GRAPHS = "rotary: ours, kept keys and values, graphs"
ANEW = "re-execution, a window for each token"
ANEW_GRAPHS = "re-execution, a window for each token, graphs"
NOT_YET = "no whole window yet"


class Written(NamedTuple):
    """How long it took."""

    seconds_per_token: float
    capturing: float = 0.0
    """Seconds for graphs, once in a text, beyond those for the tokens that came with them."""


class Clock(BaseStreamer):
    """Notes when tokens arrive; the first thing to arrive is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.graphs = 0
        """Captured by the step before the newest token."""
        self.slowed: set[int] = set()
        """Arrivals that a capture preceded."""

    def watch(self, model: Any, inputs: Any, output: Any) -> None:
        """A forward hook: who captures does so within a step."""
        cache = getattr(output, "past_key_values", None)
        graphs = len(cache.graphs.graphs) if isinstance(cache, RecurrentCache) else 0
        if graphs > self.graphs:
            self.slowed.add(len(self.times))
        self.graphs = graphs

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

    def written(self) -> Written:
        """Without the first new token, whose time is that of reading the prompt."""
        spans = {arrival: self.times[arrival] - self.times[arrival - 1] for arrival in range(2, len(self.times))}
        slowed = [span for arrival, span in spans.items() if arrival in self.slowed]
        usual = (sum(spans.values()) - sum(slowed)) / (len(spans) - len(slowed))
        return Written(usual, max(0.0, sum(slowed) - usual * len(slowed)))


class Writer(NamedTuple):
    """Someone who continues a prompt."""

    name: str
    write: Callable[[Tensor], Written]
    check: Callable[[], Row] | None = None
    """None for what is a forward pass itself."""
    most: int | None = None
    """The longest prompt that leaves room, where there is a limit."""

    def takes(self, prompt: int) -> bool:
        return self.most is None or prompt <= self.most


@dataclass
class Told(Timed):
    """Seconds for a token, and for capturing graphs."""

    captures: list[float] = field(default_factory=list)


Found = dict[tuple[str, int], Told]
"""By the writer's name and the tokens of the prompt."""


def measure_generation(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """All in turns; checks and whole rounds of an `earlier` run are not repeated."""
    writers, prompts = _writers(bench), bench.size.prompts
    found = _left_by(earlier, writers, prompts)
    with bench.bar("generation", ROUNDS * len(prompts) * len(writers)) as advance:
        checks = _checked(bench, writers, found, earlier)
        bench.keep(_result(bench, found, checks))
        warm: set[str] = set()
        for turn in range(ROUNDS):
            for prompt in prompts:
                here = [(one, found[one.name, prompt]) for one in writers if (one.name, prompt) in found]
                due = [(writer, told) for writer, told in here if len(told.seconds) <= turn]
                for writer, told in due:
                    # Right before its first turn, or little time would go into what is not timed.
                    if writer.name not in warm:
                        _one_turn(bench, writer, prompt, told, warms_up=True)
                        warm.add(writer.name)
                    _one_turn(bench, writer, prompt, told)
                advance(len(writers))
                bench.keep(_result(bench, found, checks))
    return _result(bench, found, checks)


def _left_by(earlier: dict[str, Any] | None, writers: list[Writer], prompts: tuple[int, ...]) -> Found:
    before = {(row["name"], row["prompt"]): row for row in (earlier or {}).get("rows") or []}
    left: Found = {}
    for prompt in prompts:
        keys = [(writer.name, prompt) for writer in writers if writer.takes(prompt)]
        for key, timed in zip(keys, whole_rounds([before.get(key) for key in keys]), strict=True):
            captures = before.get(key, {}).get("captures") or []
            left[key] = Told(timed.seconds, trouble=timed.trouble, captures=captures[: len(timed.seconds)])
    return left


def _checked(bench: Bench, writers: list[Writer], found: Found, earlier: dict[str, Any] | None) -> list[Row]:
    """Who has not been checked yet is; who is wrong, or is not checked for want of time, is not timed."""
    known = {check["name"]: check for check in (earlier or {}).get("checks") or []}
    checks: list[Row] = []
    for writer in writers:
        check, trouble = _check(bench, writer, known.get(check_of(writer.name)))
        checks += [] if check is None else [check]
        for (name, _), told in found.items():
            if name == writer.name and trouble is not None:
                told.trouble, told.seconds = trouble, [] if trouble == WRONG else told.seconds
    return checks


def _check(bench: Bench, writer: Writer, known: Row | None) -> tuple[Row | None, str | None]:
    """The check, if it was made, and why the writer is not to be timed, if there is a reason."""
    made: list[Row] = [] if known is None else [known]

    def check() -> None:
        if writer.check is not None:
            made.append(writer.check())

    if known is None and writer.check is not None:
        trouble = NO_TIME if bench.out_of_time() else tried(check, bench.device)
        if trouble is not None:
            return None, trouble
    if made and not made[0]["passed"]:
        bench.say(f"{made[0]['name']}: wrong results, and therefore not timed")
        return made[0], WRONG
    return (made[0] if made else None), None


def _result(bench: Bench, found: Found, checks: list[Row]) -> dict[str, Any]:
    rows: list[Row] = [
        {
            "name": name,
            "prompt": prompt,
            "seconds": told.seconds,
            "seconds_per_token": told.median,
            "captures": told.captures,
            "seconds_to_capture": statistics.median(told.captures) if any(told.captures) else None,
            "trouble": told.trouble,
        }
        for (name, prompt), told in found.items()
    ]
    missing = still_missing([f"{name}, after {prompt:,}" for name, prompt in found], found.values(), ROUNDS)
    window = bench.size.window
    return {"rows": rows, "ratios": _ratios(rows), "checks": checks, "window": window, "missing": missing}


def _one_turn(bench: Bench, writer: Writer, prompt: int, told: Told, warms_up: bool = False) -> None:
    """One that warms up is not counted."""
    if told.trouble is None and not bench.may_time():
        told.trouble = NO_TIME
    if told.trouble is not None:
        return
    written: list[Written] = []
    ids = random_tokens(bench.size, 1, prompt, bench.device)
    told.trouble = tried(lambda: written.append(writer.write(ids)), bench.device)
    if written and not warms_up:
        told.seconds.append(written[0].seconds_per_token)
        told.captures.append(written[0].capturing)


def _writers(bench: Bench) -> list[Writer]:
    size, device = bench.size, bench.device
    base = base_model(size, device)
    theirs = _by_generate(THEIRS, base, size)
    writers = [
        theirs._replace(most=size.positions - _new_tokens(size)),
        _by_generate(PLAINLY, recurrent_model(base_model(size, device), size, "carry"), size),
    ]
    if device.type == "cuda":
        writers.append(_by_graphs(GRAPHS, recurrent_model(base_model(size, device), size, "carry"), size))
    for share in OVERLAPS:
        overlap = int(share * size.window)
        model = recurrent_model(base_model(size, device), size, "plain", overlap=overlap)
        writer = _by_generate(f"re-execution, overlap {overlap}", model, size)
        writers.append(writer._replace(write=_of_last_window(writer.write, size.window)))
        if device.type == "cuda":
            twin = recurrent_model(base_model(size, device), size, "plain", overlap=overlap)
            writer = _by_graphs(f"re-execution, overlap {overlap}, graphs", twin, size)
            writers.append(writer._replace(write=_of_last_window(writer.write, size.window)))
    writers.append(Writer(ANEW, _window_anew(bench, base)))
    if device.type == "cuda":
        # Beside ours as graphs: a window is one shape, too, and what a memory saves is not what a graph saves.
        writers.append(Writer(ANEW_GRAPHS, _window_anew(bench, base, graphs=True)))
    rolling = MistralConfig(**rotary_sizes(size), sliding_window=size.window)
    set_seed(0)
    # Read in parts: a mask over a whole long prompt would be square.
    in_parts = {"prefill_chunk_size": size.window}
    model = MistralForCausalLM(rolling).to(device)
    writers.append(_by_generate("rotary: transformers' generate, rolling cache", model, size, **in_parts))
    writers.append(_by_generate(ROTARY, recurrent_model(rotary_model(size, device), size, "kv"), size))
    if device.type == "cuda":
        writers.append(_by_graphs(ROTARY_GRAPHS, recurrent_model(rotary_model(size, device), size, "kv"), size))
    return writers


def _by_graphs(name: str, model: Any, size: Size) -> Writer:
    graph_generation(model)
    return _by_generate(name, model, size)


def _new_tokens(size: Size) -> int:
    return size.window + 1


def _by_generate(name: str, model: Any, size: Size, **more: Any) -> Writer:
    new = _new_tokens(size)

    def write(prompt: Tensor) -> Written:
        as_generated(model)
        clock = Clock()
        hook = model.register_forward_hook(clock.watch)
        try:
            with torch.inference_mode():
                model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=new,
                    do_sample=False,
                    pad_token_id=0,
                    streamer=clock,
                    **more,
                )
        finally:
            hook.remove()
        assert len(clock.times) == new + 1
        return clock.written()

    return Writer(name, write, lambda: check_steps(name, model, size, **more))


def as_generated(model: Any) -> None:
    """As one loads a model to generate: on a GPU in half precision, weights and all. After its check, which is in
    single precision."""
    model.eval()
    if model.device.type == "cuda":
        model.to(torch.bfloat16)


def _of_last_window(write: Callable[[Tensor], Written], window: int) -> Callable[[Tensor], Written]:
    """A model without a memory knows no more than its window: to read all before it would only take time."""
    return lambda prompt: write(prompt[:, -window:])


def _window_anew(bench: Bench, base: Any, graphs: bool = False) -> Callable[[Tensor], Written]:
    """The standard sliding window of a model with absolute positions: no cache survives a shift."""
    window = bench.size.window

    def stepping(text: Tensor) -> Callable[[], Tensor]:
        def step() -> Tensor:
            newest: Tensor = base(text, use_cache=False, logits_to_keep=1).logits[:, -1:].argmax(-1)
            return newest

        if not graphs:
            return step
        try:
            return captured(step, text.device)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise NotMeasuredError(f"not captured ({str(error).splitlines()[0][:120]})") from None

    def write(prompt: Tensor) -> Written:
        if prompt.shape[1] < window:
            raise NotMeasuredError(NOT_YET)
        as_generated(base)
        clock = Clock()
        with torch.inference_mode():
            text = prompt[:, -window:].clone()  # written over in place: a graph reads where it was captured
            step = stepping(text)
            clock.put(prompt)
            for _ in range(ANEW_TOKENS + 1):
                newest = step()
                text.copy_(torch.cat([text, newest], dim=1)[:, -window:])
                clock.put(newest.cpu())
        return clock.written()

    return write


def _ratios(rows: Sequence[Row]) -> list[Row]:
    """Ours against the others at each prompt, and the last prompt against the first."""
    by = {(row["name"], row["prompt"]): row["seconds"] for row in rows}
    found: list[Row | None] = []
    for ours in (PLAINLY, GRAPHS, ROTARY, ROTARY_GRAPHS):
        prompts = [prompt for name, prompt in by if name == ours and by[name, prompt]]
        for name, prompt in by:
            kin = name.startswith("rotary") == ours.startswith("rotary")
            if kin and prompt in prompts and by[name, prompt] and name not in (ours, GRAPHS, ROTARY_GRAPHS):
                pair = by[ours, prompt], by[name, prompt]
                found.append(ratio(f"{ours} / {name}, after {prompt:,} tokens", *pair))
        if len(prompts) > 1:
            first, last = min(prompts), max(prompts)
            found.append(ratio(f"{ours}, after {last:,} tokens / after {first:,}", by[ours, last], by[ours, first]))
    return [one for one in found if one is not None]
