"""The time that a generated token takes, from a text's beginning to far past the model's context.

All is timed by what arrives: a streamer notes when each token comes, so reading the prompt does not count. As many
tokens are generated as a window has, so that each measurement holds one step from window to window.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, set_seed
from transformers.generation.streamers import BaseStreamer

from recurrify.bench.bench import Bench
from recurrify.bench.checks import stirred, true_float32
from recurrify.bench.memory import free_memory
from recurrify.bench.models import (
    base_model,
    random_tokens,
    recurrent_model,
    rotary_model,
    rotary_sizes,
)
from recurrify.bench.timing import NO_TIME, Row, Timed, ratio, still_missing, trouble_of, whole_rounds
from recurrify.recurrence.graphed_generation import graph_generation

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


class Clock(BaseStreamer):
    """Notes when tokens arrive; the first thing to arrive is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

    def seconds_per_token(self) -> float:
        """Without the first new token, whose time is that of reading the prompt."""
        times = self.times[1:]
        return (times[-1] - times[0]) / (len(times) - 1)


class Writer(NamedTuple):
    """Someone who continues a prompt."""

    name: str
    write: Callable[[Tensor], float]
    """Gives the seconds for each token."""
    most: int | None = None
    """The longest prompt that leaves room, where there is a limit."""

    def takes(self, prompt: int) -> bool:
        return self.most is None or prompt <= self.most


Found = dict[tuple[str, int], Timed]
"""By the writer's name and the tokens of the prompt."""


def measure_generation(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """All in turns; whole rounds of an `earlier` run are not repeated."""
    writers = _writers(bench)
    checks = [_check_follows_forward(bench)]
    prompts = bench.size.prompts
    found = _left_by(earlier, writers, prompts)
    with bench.bar("generation", (ROUNDS + 1) * len(prompts) * len(writers)) as advance:
        for turn in range(ROUNDS + 1):
            for prompt in prompts:
                for writer in writers:
                    timed = found.get((writer.name, prompt))
                    # The first turn warms up, where others follow.
                    if timed is not None and len(timed.seconds) < (turn or ROUNDS):
                        _one_turn(bench, writer, prompt, timed, warms_up=turn == 0)
                    advance(1)
                if turn:
                    bench.keep(_result(bench, found, checks))
    return _result(bench, found, checks)


def _left_by(earlier: dict[str, Any] | None, writers: list[Writer], prompts: tuple[int, ...]) -> Found:
    before = {(row["name"], row["prompt"]): row for row in (earlier or {}).get("rows") or []}
    left: Found = {}
    for prompt in prompts:
        keys = [(writer.name, prompt) for writer in writers if writer.takes(prompt)]
        left |= zip(keys, whole_rounds([before.get(key) for key in keys]), strict=True)
    return left


def _result(bench: Bench, found: Found, checks: list[Row]) -> dict[str, Any]:
    rows: list[Row] = [
        {
            "name": name,
            "prompt": prompt,
            "seconds": timed.seconds,
            "seconds_per_token": timed.median,
            "trouble": timed.trouble,
        }
        for (name, prompt), timed in found.items()
    ]
    missing = still_missing([f"{name}, after {prompt:,}" for name, prompt in found], found.values(), ROUNDS)
    window = bench.size.window
    return {"rows": rows, "ratios": _ratios(rows), "checks": checks, "window": window, "missing": missing}


def _one_turn(bench: Bench, writer: Writer, prompt: int, timed: Timed, warms_up: bool) -> None:
    if timed.trouble is None and bench.out_of_time():
        timed.trouble = NO_TIME
    if timed.trouble is not None:
        return
    try:
        seconds = writer.write(random_tokens(bench.size, 1, prompt, bench.device))
    except Exception as error:
        timed.trouble = trouble_of(error)
        if timed.trouble is None:
            raise
        del error
        free_memory(bench.device, thoroughly=True)
        return
    if not warms_up:
        timed.seconds.append(seconds)


def _writers(bench: Bench) -> list[Writer]:
    size, device = bench.size, bench.device
    new = size.window + 1

    def by_generate(model: Any, **more: Any) -> Callable[[Tensor], float]:
        as_generated(model)

        def write(prompt: Tensor) -> float:
            clock = Clock()
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
            assert len(clock.times) == new + 1
            return clock.seconds_per_token()

        return write

    base = base_model(size, device)
    writers = [
        Writer(THEIRS, by_generate(base), most=size.positions - new),
        Writer(PLAINLY, by_generate(recurrent_model(base_model(size, device), size, "carry"))),
    ]
    if device.type == "cuda":
        captured = recurrent_model(base_model(size, device), size, "carry")
        graph_generation(captured)
        writers.append(Writer(GRAPHS, by_generate(captured)))
    for share in OVERLAPS:
        overlap = int(share * size.window)
        model = recurrent_model(base_model(size, device), size, "plain", overlap=overlap)
        writers.append(Writer(f"re-execution, overlap {overlap}", _of_last_window(by_generate(model), size.window)))
    writers.append(Writer("re-execution, a window for each token", _window_anew(bench, base)))
    rolling = MistralConfig(**rotary_sizes(size), sliding_window=size.window)
    set_seed(0)
    # Read in parts: a mask over a whole long prompt would be square.
    theirs = by_generate(MistralForCausalLM(rolling).to(device), prefill_chunk_size=size.window)
    writers.append(Writer("rotary: transformers' generate, rolling cache", theirs))
    ours = recurrent_model(rotary_model(size, device), size, "kv")
    writers.append(Writer(ROTARY, by_generate(ours)))
    return writers


def as_generated(model: Any) -> None:
    """As one loads a model to generate: on a GPU in half precision, weights and all."""
    model.eval()
    if model.device.type == "cuda":
        model.to(torch.bfloat16)


def _of_last_window(write: Callable[[Tensor], float], window: int) -> Callable[[Tensor], float]:
    """A model without a memory knows no more than its window: to read all before it would only take time."""
    return lambda prompt: write(prompt[:, -window:])


def _window_anew(bench: Bench, base: Any) -> Callable[[Tensor], float]:
    """The standard sliding window of a model with absolute positions: no cache survives a shift."""

    def write(prompt: Tensor) -> float:
        clock = Clock()
        clock.put(prompt)
        text = prompt[:, -bench.size.window :]
        with torch.inference_mode():
            for _ in range(ANEW_TOKENS + 1):
                newest = base(text, use_cache=False, logits_to_keep=1).logits[:, -1:].argmax(-1)
                text = torch.cat([text, newest], dim=1)[:, -bench.size.window :]
                clock.put(newest.cpu())
        return clock.seconds_per_token()

    return write


def _check_follows_forward(bench: Bench) -> Row:
    """Greedy generation over two borders of windows gives at each step what a pass over the whole text gives."""
    model = recurrent_model(base_model(bench.size, bench.device), bench.size, "carry").eval()
    model.set_recurrence(window=16)
    prompt = random_tokens(bench.size, 1, 5, bench.device)
    # In float32, where two ways of computing choose the same token.
    with stirred(model), true_float32(), torch.inference_mode():
        text = model.generate(prompt, max_new_tokens=40, do_sample=False, pad_token_id=0)
        expected = model(text[:, :-1]).logits.argmax(-1)[:, prompt.shape[1] - 1 :]
    wrong = int((expected != text[:, prompt.shape[1] :]).sum())
    return {"name": "generation follows the forward pass", "wrong_tokens": wrong, "passed": wrong == 0}


def _ratios(rows: list[Row]) -> list[Row]:
    """Ours against the others at each prompt, and the last prompt against the first."""
    by = {(row["name"], row["prompt"]): row["seconds"] for row in rows}
    found: list[Row | None] = []
    for ours in (PLAINLY, GRAPHS, ROTARY):
        prompts = [prompt for name, prompt in by if name == ours and by[name, prompt]]
        for name, prompt in by:
            kin = name.startswith("rotary") == ours.startswith("rotary")
            if kin and prompt in prompts and by[name, prompt] and name not in (ours, GRAPHS):
                pair = by[ours, prompt], by[name, prompt]
                found.append(ratio(f"{ours} / {name}, after {prompt:,} tokens", *pair))
        if len(prompts) > 1:
            first, last = min(prompts), max(prompts)
            found.append(ratio(f"{ours}, after {last:,} tokens / after {first:,}", by[ours, last], by[ours, first]))
    return [one for one in found if one is not None]
