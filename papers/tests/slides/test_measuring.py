"""Exponents of times and counted operations; no test depends on the clock."""

import pytest

from recurrify_papers.slides.complexity import PARTS
from recurrify_papers.slides.measuring import above_floor, counted_exponent, fit_exponent, fits, sizes_along


@pytest.mark.parametrize("axis", ["T", "D"])
@pytest.mark.parametrize("part", PARTS)
def test_counted_operations_grow_as_in_the_slides(part: str, axis: str) -> None:
    if part != "RSA scan":
        assert counted_exponent(part, axis) == pytest.approx(PARTS[part][1][axis], abs=0.05)
    else:
        assert counted_exponent(part, axis) < 1.3


def test_exponent_is_fitted_to_the_larger_half() -> None:
    sizes = [1, 2, 4, 8, 16, 32]
    fit = fit_exponent(sizes, [100, 100, 100, 8**2, 16**2, 32**2])
    assert fit is not None
    assert (fit.exponent, fit.points) == (pytest.approx(2.0), 3)
    assert fit_exponent([1, 2], [1, 2]) is None


def test_sizes_near_the_floor_are_not_fitted() -> None:
    assert above_floor({1: 1.0, 2: 6.0, 4: 2.0, 8: 7.0, 16: 9.0}, 1.0) == {16: 9.0, 8: 7.0}
    points = [{"T": size, "seconds": 1.0, "forward_seconds": size * 10.0, "peak_bytes": None} for size in (1, 2, 4)]
    exponents, too_few = fits("T", {"seconds": 1.0, "forward_seconds": 1.0}, points)
    assert exponents["forward_seconds"]["exponent"] == pytest.approx(1.0)
    assert too_few == ["seconds"]


def test_slow_parts_stop_early_and_light_ones_are_longer() -> None:
    grid = {"lengths": (8, 16, 32), "longest_slow": 16, "widths": (64,), "width": 64, "length": 4, "light_times": 2}
    assert sizes_along("LSTM layer", "T", grid) == ([(8, 64), (16, 64)], {"D": 64})
    assert sizes_along("RSA scan", "T", grid)[0] == [(16, 64), (32, 64), (64, 64)]
    assert sizes_along("RSA scan", "D", grid) == ([(8, 64)], {"T": 8})
