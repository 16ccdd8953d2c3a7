"""How numbers are written everywhere in a report. What is missing or not finite is a dash, never a crash."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from recurrify import console

MISSING = "–"


def finite(value: Any) -> float | None:
    """`value` as a float if it is a number one can draw or average."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def finite_pair(value: Any) -> tuple[float, float] | None:
    """An interval's two ends, if it has both."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return None
    low, high = finite(value[0]), finite(value[1])
    return None if low is None or high is None else (low, high)


def perplexity(value: float | None) -> str:
    if value is None:
        return MISSING
    if value < 100:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def perplexity_range(ends: tuple[float, float] | None) -> str:
    return MISSING if ends is None else f"{perplexity(ends[0])} to {perplexity(ends[1])}"


def bits(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def fixed(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    return MISSING if value is None else _sign(value, f"{abs(value):,.{digits}f}", signed)


def _sign(value: float, digits: str, signed: bool) -> str:
    """What rounds to nothing is neither above nor below it."""
    if not any(digit in "123456789" for digit in digits):
        return digits
    return f"{'−' if value < 0 else '+' if signed else ''}{digits}"


def p_value(value: float | None) -> str:
    if value is None:
        return MISSING
    return "< 0.00001" if value < 1e-5 else f"{value:.5f}" if value < 0.001 else f"{value:.3f}"


def percent(fraction: float | None, *, signed: bool = False) -> str:
    if fraction is None:
        return MISSING
    return f"{_sign(fraction, f'{100 * abs(fraction):.1f}', signed)} %"


def percent_range(ends: tuple[float, float] | None, *, signed: bool = False) -> str:
    if ends is None:
        return MISSING
    return f"{percent(ends[0], signed=signed)} to {percent(ends[1], signed=signed)}"


def count(value: Any) -> str:
    number = finite(value)
    return MISSING if number is None else f"{number:,.0f}"


def large(value: float | None) -> str:
    return MISSING if value is None else console.large(value)


def tick(value: float) -> str:
    """`large` for an axis, without trailing zeros."""
    scaled, unit = console.scaled(value)
    return f"{scaled:.3g}{unit}"


def facts(value: Any) -> Mapping[str, Any]:
    """`value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}
