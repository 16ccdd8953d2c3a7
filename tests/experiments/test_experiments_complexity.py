"""Exponents from made-up times, operations from the code itself, and measurements that do not fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from recurrify.errors import UserError
from recurrify.experiments import Lab, complexity
from recurrify.experiments.complexity import (
    GRIDS,
    PARTS,
    Attention,
    Grid,
    complexity_rows,
    counted_exponent,
    fit_exponent,
)

SIZES = (128, 256, 512, 1024, 2048, 4096)


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
        seconds = 1e-9 * length**1.5 * width**0.5
        return {"T": length, "D": width, "forward_seconds": seconds / 3, "seconds": seconds, "peak_bytes": None}

    monkeypatch.setattr(complexity, "measure", measured)
    monkeypatch.setattr(complexity, "counted_exponent", lambda part, axis: 1.0)
    rows, missing = complexity_rows(lab)
    assert [(row["part"], row["axis"]) for row in rows] == [(name, axis) for name in PARTS for axis in ("T", "D")]
    assert missing == ["LSTM layer at T = 16, D = 192 (out of memory)"]
    for row in rows:
        assert "peak_bytes" not in row["exponents"]
        if (row["part"], row["axis"]) == ("LSTM layer", "D"):
            assert row["exponents"] == {}
            assert [point["D"] for point in row["points"]] == [64, 128]
        else:
            expected = 1.5 if row["axis"] == "T" else 0.5
            assert row["exponents"]["seconds"]["exponent"] == pytest.approx(expected)
            assert row["exponents"]["forward_seconds"]["exponent"] == pytest.approx(expected)
    assert rows[0]["at"] == {"D": 64}
    assert rows[1]["at"] == {"T": 16}


def test_slow_parts_stop_earlier(lab: Lab) -> None:
    grid = Grid(**{**GRIDS["cpu"], "longest_slow": 512})
    assert [length for length, _ in grid.along("T", slow=True)] == [128, 256, 512]
    assert len(grid.along("T", slow=False)) == len(grid.lengths)
    assert grid.along("D", slow=True) == [(grid.length, width) for width in grid.widths]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"width": 100}, "whole number of heads of 64: got 100"), ({"repeats": 0}, "`repeats` must be at least 1: got 0")],
    ids=["width", "repeats"],
)
def test_grids_that_cannot_be_measured_are_refused(lab: Lab, change: dict[str, Any], sentence: str) -> None:
    lab.size = replace(lab.size, complexity={**lab.size.complexity, **change})
    with pytest.raises(UserError, match=sentence):
        complexity_rows(lab)
