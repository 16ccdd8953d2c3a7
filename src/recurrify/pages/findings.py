"""What a comparison says, in words that claim no more than its interval allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recurrify.pages import numbers


@dataclass(frozen=True)
class Gain:
    """The relative drop of perplexity from one reading of a text to another."""

    relative: float
    interval: tuple[float, float] | None
    within_noise: bool
    unit: str = "token"

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Gain | None":
        """From an entry of a result; None where it has no number."""
        relative, interval = numbers.finite(entry.get("relative_gain")), numbers.finite_pair(entry.get("interval"))
        if relative is None:
            return None
        noise = entry.get("within_noise")
        # Without an interval a gain may be noise.
        within = interval is None or interval[0] <= 0 <= interval[1] if noise is None else bool(noise)
        return cls(relative, interval, within, str(entry.get("unit") or "token"))

    @property
    def tone(self) -> str:
        return "" if self.within_noise else "better" if self.relative > 0 else "worse"

    @property
    def verdict(self) -> str:
        return self.tone or "within noise"

    @property
    def number(self) -> str:
        """The change of perplexity."""
        if self.is_none:
            return "no difference"
        return f"{numbers.percent(abs(self.relative))} {'lower' if self.relative >= 0 else 'higher'}"

    @property
    def interval_text(self) -> str:
        if self.interval is None:
            return "one document: no interval"
        low, high = self.interval
        if low < 0 < high:
            return f"95 % interval: {numbers.percent(-high, signed=True)} to {numbers.percent(-low, signed=True)}"
        ends = sorted((abs(low), abs(high)))
        return f"95 % interval: {numbers.percent_range((ends[0], ends[1]))}"

    def what(self, against: str) -> str:
        """What the number compares."""
        return f"in {self.measure}, compared with {against}" if self.is_none else f"{self.measure} than {against}"

    @property
    def is_none(self) -> bool:
        """Whether the change is shown as 0.0 %."""
        return abs(self.relative) < 0.0005

    @property
    def measure(self) -> str:
        return "bits per character" if self.unit == "character" else f"perplexity per {self.unit}"

    def sentence(self, subject: str, against: str) -> str:
        """`subject` and `against` name the two readings, such as "The memory" and "plain windows of 300"."""
        if self.interval is None:
            verb = "lower" if self.relative > 0 else "higher"
            return (
                f"{subject}: {self.measure} is {self._size} {verb} than with {against} on this document. A single "
                "document gives no interval: on other texts the difference may be another."
            )
        if self.within_noise:
            return (
                f"{subject}: no clear difference in {self.measure} compared with {against} "
                f"({self.number}; {self.interval_text})."
            )
        verb = "lowers" if self.relative > 0 else "raises"
        return f"{subject} {verb} {self.measure} by {self._size} ({self.interval_text}) compared with {against}."

    @property
    def _size(self) -> str:
        return numbers.percent(abs(self.relative))


def extra_cost(flops: Any, other: Any) -> str:
    """How many more FLOPs per token one reading takes than another."""
    mine, theirs = numbers.finite(flops), numbers.finite(other)
    if mine is None or not theirs:
        return numbers.MISSING
    return f"{numbers.percent(mine / theirs - 1, signed=True)} FLOPs"


def conclusion(
    gain: Gain, subject: str, against: str, memory: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> str:
    """The gain over one reading of the base, and whether another reading is better than the memory, at what cost."""
    found = gain.sentence(subject, against)
    if not others:
        return found
    from recurrify.evaluate.comparison import SAME_PRICE  # loads torch, which other pages do not need

    price, level = memory["full_flops_per_token"], memory["perplexity_per_token"]
    better = [row for row in others if row["perplexity_per_token"] < level]
    cheap = [row for row in better if row["full_flops_per_token"] <= SAME_PRICE * price]
    if cheap:
        worse = gain.tone == "worse" or (gain.interval is None and gain.relative < 0)
        if worse and against in [row["label"] for row in cheap]:
            size = f"{numbers.percent(-gain.relative)}; {gain.interval_text}"
            name = against[:1].upper() + against[1:]
            return f"{name} read better at the same price ({size}): the memory does not pay here."
        return f"{found} But {cheap[0]['label']} is better at the same price."
    if not better:
        return f"{found} No other reading of the base compared here is better."
    best = min(better, key=lambda row: row["perplexity_per_token"])
    times = best["full_flops_per_token"] / price
    return (
        f"{found} It is the best at its price, not the best of all: {best['label']} is better, for {times:.1f} times "
        "the FLOPs."
    )
