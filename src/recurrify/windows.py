"""Where windows of text begin and end: pure arithmetic, no tensors."""

from numbers import Integral
from typing import NamedTuple

from recurrify.errors import UserError


class Window(NamedTuple):
    """Inputs `start` to `stop` (exclusive); the predictions from `first` on are the ones that count."""

    start: int
    stop: int
    first: int


def check_window(window: int, overlap: int) -> None:
    for name, value in (("window", window), ("overlap", overlap)):
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise UserError(f"`{name}` must be a whole number of tokens: got {name}={value!r}.")
    if window < 1:
        raise UserError(f"`window` must be at least 1 token: got window={window}.")
    if not 0 <= overlap < window:
        raise UserError(
            f"`overlap` must be at least 0 and smaller than `window`: got overlap={overlap}, window={window}."
        )


def schedule(length: int, window: int, overlap: int = 0) -> list[Window]:
    """Cut `length` inputs into windows that start every `window - overlap` tokens.

    Every input is at or after `first` in exactly one window: the one in which it has the most context. `overlap=0`
    gives disjoint windows, `overlap=window-1` a sliding evaluation.
    """
    check_window(window, overlap)
    if length < 0:
        raise UserError(f"`length` cannot be negative: got length={length}.")
    windows: list[Window] = []
    start, first = 0, 0
    while first < length:
        stop = min(start + window, length)
        windows.append(Window(start, stop, first))
        start, first = start + window - overlap, stop
    return windows


def completed(length: int, window: int, overlap: int = 0) -> int:
    """How many windows `length` tokens fill; the next window starts after `completed × stride` tokens."""
    if length < window:
        return 0
    return (length - window) // (window - overlap) + 1
