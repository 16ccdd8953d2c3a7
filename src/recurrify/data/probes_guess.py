"""The accuracy of a reader that knows which answers were stated, but not to what they belong.

It lies between chance and full memory: only accuracy above it shows that names and answers are remembered together.
Both levels here are exact, for answers drawn independently and uniformly.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product


def level_by_elimination(said: int, answers: int) -> float:
    """Every one of `said` answers is asked for in random order and read after its question: the reader chooses the most
    frequent of those left. The mean over all questions."""
    return float(sum(most_frequent(left, answers) / left for left in range(1, said + 1)) / said)


def most_frequent(drawn: int, answers: int) -> Fraction:
    """The expected count of the most frequent of `drawn` answers."""
    ways = Fraction(answers) ** drawn
    # An expectation is the sum of the probabilities to exceed 0, 1, 2 and so on.
    return sum((1 - _ways_up_to(most, drawn, answers) / ways for most in range(drawn)), Fraction(0))


def _ways_up_to(most: int, drawn: int, answers: int) -> Fraction:
    """The number of ways to draw answers, none more often than `most`: a coefficient of the product, over all answers,
    of 1 + x + x² / 2! + … up to that power."""
    single = [Fraction(1, math.factorial(times)) if times <= most else Fraction(0) for times in range(drawn + 1)]
    power, square, left = [Fraction(1)] + [Fraction(0)] * drawn, single, answers
    while left:
        if left % 2:
            power = _multiplied(power, square)
        square, left = _multiplied(square, square), left // 2
    return power[drawn] * math.factorial(drawn)


def _multiplied(one: Sequence[Fraction], other: Sequence[Fraction]) -> list[Fraction]:
    """The product of two polynomials, without higher powers."""
    return [sum((one[low] * other[high - low] for low in range(high + 1)), Fraction(0)) for high in range(len(one))]


def level_by_place(shares: Sequence[float], answers: int) -> float:
    """One answer is asked for; the reader knows all that were stated, in order, and how often (`shares`) each place
    holds the right one. It chooses the answer that is most likely right."""
    total = 0.0
    for said in product(range(answers), repeat=len(shares)):
        weights: dict[int, float] = {}
        for answer, share in zip(said, shares, strict=True):
            weights[answer] = weights.get(answer, 0.0) + share
        total += max(weights.values())
    return total / answers ** len(shares)
