"""Exponents from made-up times, operations from the code itself, and measurements that do not fit."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from recurrify.errors import UserError
from recurrify.results import load_result
from recurrify.speed import capturing
from recurrify_papers.experiments import complexity
from recurrify_papers.experiments.complexity import (
    GRIDS,
    PARTS,
    TIMES_FLOOR,
    Attention,
    Grid,
    above_floor,
    complexity_rows,
    counted_exponent,
    device_times,
    fit_exponent,
    measure,
)
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.running import run_experiments

SIZES = (128, 256, 512, 1024, 2048, 4096)


def point(length: int, width: int, host: float, device: float | None = None, why: str | None = None) -> dict[str, Any]:
    """As `measure` would have measured it."""

    def times(seconds: float) -> dict[str, Any]:
        return {"forward_seconds": seconds / 3, "seconds": seconds, "seconds_range": [seconds, seconds]}

    return {
        "T": length,
        "D": width,
        "by_host": times(host),
        "by_device": None if device is None else times(device),
        "not_captured": why,
        "peak_bytes": None,
    }


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int, int]]:
    """Times by a formula and no operations counted; the part, length and width of everything that is measured."""
    asked: list[tuple[Any, int, int]] = []

    def measure(part: Any, length: int, width: int, repeats: int, device: torch.device) -> dict[str, Any]:
        asked.append((part, length, width))
        return point(length, width, 1e-9 * length**1.5 * width**0.5)

    monkeypatch.setattr(complexity, "measure", measure)
    monkeypatch.setattr(complexity, "counted_exponent", lambda part, axis: 1.0)
    return asked


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_the_larger_sizes(exponent: float) -> None:
    """At the smaller ones the time is all waiting, and stays the same."""
    seconds = [max(1e-9 * size**exponent, 1e-9 * 1024**exponent) for size in SIZES]
    found = fit_exponent(SIZES, seconds)
    assert found is not None
    assert found.exponent == pytest.approx(exponent)
    assert found.standard_error == pytest.approx(0.0, abs=1e-9)
    assert found.points == 3


def test_the_standard_error_is_that_of_least_squares() -> None:
    chance = np.random.default_rng(0)
    sizes = [2**power for power in range(4, 16)]
    seconds = [size**1.7 * np.exp(chance.normal(0, 0.1)) for size in sizes]
    found = fit_exponent(sizes[::-1], seconds[::-1])
    x, y = np.log(sizes[6:]), np.log(seconds[6:])
    design = np.stack([np.ones(6), x], axis=1)
    (_, slope), rest = np.linalg.lstsq(design, y)[:2]
    variance = rest[0] / 4 * np.linalg.inv(design.T @ design)[1, 1]
    assert found is not None
    assert (found.exponent, found.standard_error) == (pytest.approx(slope), pytest.approx(np.sqrt(variance)))
    assert found.points == 6


def test_two_sizes_make_no_line() -> None:
    assert fit_exponent([64, 128], [1.0, 2.0]) is None
    assert fit_exponent([64, 128, 256], [1.0, 2.0, 0.0]) is None


@pytest.mark.parametrize("axis", ["T", "D"])
@pytest.mark.parametrize("name", list(PARTS))
def test_operations_grow_as_the_theory_says(name: str, axis: str) -> None:
    assert counted_exponent(PARTS[name], axis) == pytest.approx(PARTS[name].exponents[axis], abs=0.05)


def test_both_attentions_are_the_same_function() -> None:
    inputs = torch.randn(1, 20, 128, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Attention(fused=False)(inputs), Attention(fused=True)(inputs))


def test_rows_hold_what_was_measured(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times by a formula; and what does not fit ends its row, and is named."""

    def measured(part: Any, length: int, width: int, repeats: int, device: torch.device) -> dict[str, Any]:
        if part is PARTS["LSTM layer"] and width > 128:
            raise torch.OutOfMemoryError
        return point(length, width, 1e-9 * length**1.5 * width**0.5)

    monkeypatch.setattr(complexity, "measure", measured)
    monkeypatch.setattr(complexity, "counted_exponent", lambda part, axis: 1.0)
    rows, missing = complexity_rows(lab)
    assert [(row["part"], row["axis"]) for row in rows] == [(name, axis) for name in PARTS for axis in ("T", "D")]
    assert missing == ["LSTM layer at T = 16, D = 192 (out of memory)"]
    for row in rows:
        assert "peak_bytes" not in row["exponents"]
        if (row["part"], row["axis"]) == ("LSTM layer", "D"):
            assert row["exponents"] == {}
            assert row["too_few"] == ["seconds", "forward_seconds"]
            assert [point["D"] for point in row["points"]] == [64, 128]
        else:
            expected = 1.5 if row["axis"] == "T" else 0.5
            assert row["exponents"]["seconds"]["exponent"] == pytest.approx(expected)
            assert row["exponents"]["forward_seconds"]["exponent"] == pytest.approx(expected)
    assert rows[0]["at"] == {"D": 64}
    assert rows[1]["at"] == {"T": 16}


def test_slow_parts_stop_earlier(lab: Lab) -> None:
    grid = Grid(**{**GRIDS["cpu"], "longest_slow": 512})
    slow, usual, light = (PARTS[name] for name in ("LSTM layer", "position-wise FFN", "RSA scan"))
    assert [length for length, _ in grid.along("T", slow)] == [128, 256, 512]
    assert [length for length, _ in grid.along("T", usual)] == list(grid.lengths)
    assert [length for length, _ in grid.along("T", light)] == [grid.light_times * length for length in grid.lengths]
    assert grid.along("D", slow) == grid.along("D", usual) == [(grid.length, width) for width in grid.widths]
    assert grid.along("D", light) == [(grid.light_times * grid.length, width) for width in grid.widths]


@pytest.mark.parametrize("clock", ["host", "device"])
def test_what_is_mostly_launching_is_measured_and_not_fitted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """A launch and work that grows with the square: near the floor the curve is flat."""

    def seconds(part: Any, length: int, width: int, repeats: int, device: torch.device) -> dict[str, Any]:
        launch = 1e-3 if part is PARTS["RSA scan"] else 1e-6
        work = launch + 1e-12 * length**2 * width if length > 1 else launch
        return point(length, width, work) if clock == "host" else point(length, width, work + 2.0, work)

    monkeypatch.setattr(complexity, "measure", seconds)
    monkeypatch.setattr(complexity, "counted_exponent", lambda part, axis: 1.0)
    sizes = {"lengths": (512, 1024, 2048, 4096, 8192, 16_384), "longest_slow": 16_384, "light_times": 1}
    lab.size = replace(lab.size, complexity={**lab.size.complexity, **sizes})
    rows, missing = complexity_rows(lab)
    assert missing == []
    scan = next(row for row in rows if (row["part"], row["axis"]) == ("RSA scan", "T"))
    # 1e-12 · 8192² · 64 is the first that is more than four launches beside its own.
    assert scan["left_out"] == {"seconds": [512, 1024, 2048, 4096], "forward_seconds": [512, 1024, 2048, 4096]}
    assert (scan["exponents"], scan["too_few"]) == ({}, ["seconds", "forward_seconds"])
    assert len(scan["points"]) == 6
    assert scan["floor"] == {"seconds": 1e-3, "forward_seconds": pytest.approx(1e-3 / 3), "times": TIMES_FLOOR}
    attention = rows[0]
    assert attention["left_out"] == {"seconds": [], "forward_seconds": []}
    assert attention["exponents"]["seconds"]["exponent"] == pytest.approx(2.0, abs=0.01)
    assert {row["clock"] for row in rows} == {clock}


def test_a_size_above_the_floor_with_a_larger_one_below_it_is_chance() -> None:
    assert above_floor([64, 128, 256, 512], [6.0, 4.0, 7.0, 9.0], 1.0) == [256, 512]
    assert above_floor([64, 128], [6.0, 4.0], 1.0) == []
    assert above_floor([], [], 1.0) == []


def test_a_row_has_one_clock_and_says_why_it_is_the_host_s(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launching is in the host's times and not in the device's: mixed, they would bend every line."""

    def seconds(part: Any, length: int, width: int, repeats: int, device: torch.device) -> dict[str, Any]:
        work = 1e-9 * length * width
        if part is PARTS["LSTM layer"] and length == 32:
            return point(length, width, 10 * work, None, "operation not permitted when stream is capturing")
        return point(length, width, 10 * work, work)

    monkeypatch.setattr(complexity, "measure", seconds)
    monkeypatch.setattr(complexity, "counted_exponent", lambda part, axis: 1.0)
    rows, _ = complexity_rows(lab)
    for row in rows:
        refused = (row["part"], row["axis"]) == ("LSTM layer", "T")
        assert row["clock"] == ("host" if refused else "device")
        assert row["not_captured"] == ("operation not permitted when stream is capturing" if refused else None)
        times = 10 if refused else 1
        assert [one["seconds"] for one in row["points"]] == [
            pytest.approx(times * 1e-9 * one["T"] * one["D"]) for one in row["points"]
        ]


class Clock:
    """In place of CUDA's events: one millisecond passes with every replay."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Clock.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "Clock") -> float:
        return other.at - self.at


def test_captured_passes_are_timed_by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[Any] = []

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        captured.append(step)
        step()

        def replay() -> None:
            Clock.now += len(captured)

        return replay

    monkeypatch.setattr(capturing, "capture", capture)
    monkeypatch.setattr(capturing, "on_side_stream", lambda step: step())
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    inputs = torch.randn(1, 4, 64, requires_grad=True)
    module = PARTS["RSA scan"].build(64)
    times, why = device_times(module, inputs, 3, 2e-3)
    assert why is None
    assert times is not None
    assert times["forward_seconds"] == pytest.approx(1e-3)
    assert times["seconds"] == pytest.approx(2e-3)
    assert times["seconds_range"] == [pytest.approx(2e-3), pytest.approx(2e-3)]
    assert inputs.grad is None  # nothing is left over for the next pass to add to


def refuse(error: Exception) -> Callable[..., Any]:
    def capture(step: Callable[[], None]) -> None:
        raise error

    return capture


def test_what_cannot_be_captured_is_told_and_what_does_not_fit_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capturing, "on_side_stream", lambda step: step())
    inputs = torch.randn(1, 4, 64, requires_grad=True)
    monkeypatch.setattr(capturing, "capture", refuse(RuntimeError("CUDA error:\n not permitted")))
    assert device_times(nn.Linear(64, 64), inputs, 3, 1.0) == (None, "CUDA error: not permitted")
    monkeypatch.setattr(capturing, "capture", refuse(torch.OutOfMemoryError("no memory")))
    with pytest.raises(torch.OutOfMemoryError):
        device_times(nn.Linear(64, 64), inputs, 3, 1.0)


@pytest.mark.parametrize("name", list(PARTS))
def test_a_cpu_is_timed_by_the_host(name: str) -> None:
    found = measure(PARTS[name], 16, 64, 1, torch.device("cpu"))
    assert (found["T"], found["D"], found["peak_bytes"]) == (16, 64, None)
    assert (found["by_device"], found["not_captured"]) == (None, None)
    assert 0 < found["by_host"]["forward_seconds"] < found["by_host"]["seconds"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(PARTS))
def test_every_part_can_be_captured_and_has_no_launches_in_its_time(name: str) -> None:
    found = measure(PARTS[name], 256, 128, 5, torch.device("cuda"))
    assert found["not_captured"] is None
    assert 0 < found["by_device"]["forward_seconds"] < found["by_device"]["seconds"] < found["by_host"]["seconds"]
    assert found["peak_bytes"] > 256 * 128 * 4


def test_when_time_is_up_the_same_command_goes_on(
    lab: Lab, measured: list[tuple[Any, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time for three of the ten rows."""
    every = [f"{name}, along {axis}" for name in PARTS for axis in ("T", "D")]
    now, begun = time.monotonic(), []
    with monkeypatch.context() as patch:
        lab.deadline = now + 100
        patch.setattr(lab, "say", lambda text: begun.append(text) if text in every else None)
        patch.setattr(complexity.time, "monotonic", lambda: now + 40 * len(begun))
        run_experiments(["slides-complexity"], lab)
    assert begun == every[:3]
    first = load_result(lab.folder / "slides-complexity.json")
    assert (len(first["rows"]), first["missing"]) == (3, every[3:])
    lab.deadline = None
    asked = len(measured)
    run_experiments(["slides-complexity"], lab)
    second = load_result(lab.folder / "slides-complexity.json")
    assert second["rows"][:3] == first["rows"]
    assert [f"{row['part']}, along {row['axis']}" for row in second["rows"]] == every
    assert second["missing"] == []
    assert len(measured) - asked == 7 * (1 + 3)  # a floor and three sizes each
    assert complexity_rows(lab) == (second["rows"], [])
    assert len(measured) - asked == 7 * (1 + 3)


def test_what_did_not_fit_or_had_other_sizes_is_measured_again(
    lab: Lab, measured: list[tuple[Any, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(part: Any, length: int, width: int, repeats: int, device: torch.device) -> dict[str, Any]:
        if width == 192:
            raise torch.OutOfMemoryError
        return point(length, width, 1e-6 * length * width)

    with monkeypatch.context() as patch:
        patch.setattr(complexity, "measure", without_memory)
        run_experiments(["slides-complexity"], lab)
    first = load_result(lab.folder / "slides-complexity.json")
    assert len(first["missing"]) == len(PARTS)
    lab.deadline = 0.0
    assert complexity_rows(lab) == (first["rows"], first["missing"])
    assert measured == []
    lab.deadline = None
    rows, missing = complexity_rows(lab)
    assert (len(rows), missing) == (2 * len(PARTS), [])
    assert len(measured) == len(PARTS) * (1 + 3)
    measured.clear()
    lab.size = replace(lab.size, complexity={**lab.size.complexity, "lengths": (8, 16, 64)})
    complexity_rows(lab)
    assert {width for _, _, width in measured} == {64, 128, 192}
    assert [length for part, length, _ in measured if part is PARTS["position-wise FFN"]][:4] == [1, 8, 16, 64]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"width": 100}, "whole number of heads of 64: got 100"),
        ({"repeats": 0}, "`repeats` must be at least 1: got 0"),
        ({"light_times": 0}, "`light_times` must be at least 1: got 0"),
    ],
    ids=["width", "repeats", "light"],
)
def test_grids_that_cannot_be_measured_are_refused(lab: Lab, change: dict[str, Any], sentence: str) -> None:
    lab.size = replace(lab.size, complexity={**lab.size.complexity, **change})
    with pytest.raises(UserError, match=sentence):
        complexity_rows(lab)
