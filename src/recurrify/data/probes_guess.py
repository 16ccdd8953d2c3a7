"""The accuracy of a reader that knows which answers were stated, but not to what they belong.

It lies between chance and full memory: only accuracy above it shows that names and answers are remembered together.
Both levels here are exact, for answers drawn independently and uniformly.
"""

import math
from collections.abc import Sequence
from itertools import product

from numpy.polynomial.polynomial import polypow


def level_by_elimination(said: int, answers: int) -> float:
    """Every one of `said` answers is asked for in random order and read after its question: the reader chooses the most
    frequent of those left. The mean over all questions."""
    return sum(most_frequent(left, answers) / left for left in range(1, said + 1)) / said


def most_frequent(drawn: int, answers: int) -> float:
    """The expected count of the most frequent of `drawn` answers."""
    # An expectation is the sum of the probabilities to exceed 0, 1, 2 and so on.
    return sum(1 - _share_up_to(most, drawn, answers) for most in range(drawn))


def _share_up_to(most: int, drawn: int, answers: int) -> float:
    """The probability that no answer is drawn more than `most` times.

    The number of ways to draw is a coefficient of (1 + x + x² / 2! + … up to x^most / most!) ^ answers.
    """
    ways = polypow([1 / math.factorial(times) for times in range(most + 1)], answers)
    return float(ways[drawn]) * math.factorial(drawn) / answers**drawn if drawn < len(ways) else 0.0


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
