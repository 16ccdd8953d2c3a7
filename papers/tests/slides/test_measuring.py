"""Exponents of times and counted operations; no test depends on the clock."""

import pytest

from recurrify_papers.slides.complexity import PARTS
from recurrify_papers.slides.measuring import Point, above_floor, counted_exponent, exponents, sizes_along


@pytest.mark.parametrize("axis", ["T", "D"])
@pytest.mark.parametrize("part", PARTS)
def test_counted_operations_grow_as_in_the_slides(part: str, axis: str) -> None:
    found = counted_exponent(part, axis)["value"]
    if part != "RSA scan":
        assert found == pytest.approx(PARTS[part][1][axis], abs=0.05)
    else:
        assert found < 1.3


def test_exponent_is_fitted_to_the_larger_half_of_the_sizes_above_the_floor() -> None:
    sizes = [1, 2, 4, 8, 16, 32]
    quadratic = [100.0, 100.0, 100.0, 64.0, 256.0, 1024.0]
    points: list[Point] = [
        {"T": size, "seconds": 1.0, "forward_seconds": value, "peak_bytes": None}
        for size, value in zip(sizes, quadratic, strict=True)
    ]
    floor: Point = {"seconds": 1.0, "forward_seconds": 1.0}
    both, forward = exponents("T", floor, points)
    assert forward["value"] == pytest.approx(2.0)
    assert forward["note"] == "standard error 0.00 over 3 sizes"
    assert both == {
        "metric": "exponent of forward and backward time",
        "value": None,
        "note": "too few sizes take several times as long as launching the kernels",
    }
    assert above_floor([(1, 1.0), (2, 6.0), (4, 2.0), (8, 7.0), (16, 9.0)], 1.0) == [(8, 7.0), (16, 9.0)]


def test_slow_parts_stop_early_and_light_ones_are_longer() -> None:
    grid = {"lengths": (8, 16, 32), "longest_slow": 16, "widths": (64,), "width": 64, "length": 4}
    assert sizes_along("T", grid, slow=True, times=1) == ([(8, 64), (16, 64)], "D = 64")
    assert sizes_along("T", grid, slow=False, times=2)[0] == [(16, 64), (32, 64), (64, 64)]
    assert sizes_along("D", grid, slow=False, times=2) == ([(8, 64)], "T = 8")
