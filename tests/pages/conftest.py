"""A made-up demo result of the shape the real one has; no number in it was measured."""

import math
from typing import Any

import pytest

WINDOW = 64
OVERLAPS = (0, 8, 16, 32)


def _row(model: str, weights: str, seed: int | None, overlap: int, per_word: float) -> dict[str, Any]:
    flops = (1.14e6 if model != "recurrent" else 1.21e6) * WINDOW / (WINDOW - overlap)
    return {
        "model": model,
        "weights": weights,
        "seed": seed,
        "overlap": overlap,
        "perplexity_per_word": per_word,
        "perplexity_per_word_interval": [per_word * 0.96, per_word * 1.04],
        "perplexity_per_token": per_word**0.65,
        "bits_per_character": math.log2(per_word) / 2.6,
        "full_flops_per_token": flops,
    }


def _rows() -> list[dict[str, Any]]:
    rows = []
    for step, overlap in enumerate(OVERLAPS):
        rows.append(_row("base", "shipped", None, overlap, 33.4 - 1.1 * step))
        rows.append(_row("plain", "shipped", None, overlap, 30.12 - 1.0 * step))
        rows.append(_row("recurrent", "shipped", None, overlap, 28.83 - 0.8 * step))
        for seed in (0, 1):
            rows.append(_row("plain", "live", seed, overlap, 32.5 - 1.0 * step + 0.3 * seed))
            rows.append(_row("recurrent", "live", seed, overlap, 32.2 - 0.9 * step + 0.5 * seed))
    return rows


def _gains() -> list[dict[str, Any]]:
    gains = []
    for step, overlap in enumerate(OVERLAPS):
        middle = 0.043 - 0.008 * step
        gain = {"weights": "shipped", "overlap": overlap, "relative_gain": middle, "seeds": 1}
        gains.append(gain | {"interval": [middle - 0.007, middle + 0.007], "within_noise": False})
        gain = {"weights": "live", "overlap": overlap, "relative_gain": 0.006 - 0.003 * step, "seeds": 2}
        gains.append(gain | {"interval": [-0.004 - 0.003 * step, 0.017 - 0.003 * step], "within_noise": True})
    return gains


def _loss_by_position(floor: float, first: float) -> list[float]:
    return [
        floor + (first - floor) / (1 + position) ** 0.6 + 0.03 * math.sin(7.0 * position) for position in range(WINDOW)
    ]


def _curve(seed: int, end: float) -> dict[str, Any]:
    tokens = list(range(10_000, 610_000, 10_000))
    losses = [end + 0.25 * math.exp(-count / 2e5) + 0.05 * math.sin(seed + count / 9e3) for count in tokens]
    return {"seed": seed, "tokens": tokens, "loss": losses}


def _provenance() -> dict[str, Any]:
    return {
        "config": {"command": "demo", "window": WINDOW, "learning_rate": 0.0005},
        "seed": 0,
        "recurrify": "0.1.0",
        "git": {"commit": "0f3a" * 10, "dirty": True},
        "libraries": {"python": "3.11.7", "torch": "2.13.0+cpu", "datasets": None},
        "machine": {"cpu": "Example CPU @ 2.60GHz", "cores": 2, "ram_bytes": 8_000_000_000, "gpu": None},
        "date_utc": "2025-01-02T03:04:05+00:00",
        "wall_seconds": 312.5,
        "peak_memory_bytes": {"cpu": 900_000_000, "gpu": None},
        "data_checksum": "sha256:" + "ab12" * 16,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "kind": "demo",
        "provenance": _provenance(),
        "settings": {
            "corpus": "stdlib",
            "window": WINDOW,
            "windows": 8,
            "overlaps": list(OVERLAPS),
            "live_tokens": 600_000,
            "live_seeds": [0, 1],
            "parameters": {"base": 570_000, "recurrent": 650_000},
            "test_documents": 40,
            "test_tokens": 120_000,
            "python": "3.11.7",
        },
        "rows": _rows(),
        "gains": _gains(),
        "loss_by_position": {
            "shipped": {"plain": _loss_by_position(1.9, 6.2), "recurrent": _loss_by_position(1.88, 4.9)},
            "live": {"plain": _loss_by_position(2.0, 6.3), "recurrent": _loss_by_position(2.0, 6.0)},
        },
        "curves": {
            "plain": [_curve(0, 2.42), _curve(1, 2.44)],
            "recurrent": [_curve(0, 2.40), _curve(1, 2.43)],
        },
        "continuations": [
            {
                "prompt_end": "    def assert_close(self):\n        if self._file and <closed",
                "truth": ":\n            self._file.close()\n            del self._file\n",
                "plain": ":\n            return self.name\n        if x < 3 & y > '2':\n            raise\n",
                "recurrent": ":\n            self._file.close()\n        return self._file\n",
            },
            {
                "prompt_end": "class Parser:\n    def feed(",
                "truth": "self, data):\n        self._buffer.append(data)\n        return len(data)\n",
                "plain": "self, *args, **kwargs):\n        self.args = args\n",
                "recurrent": "self, data):\n        self.data = data\n\x0c\n</code><script>alert(1)</script>",
            },
        ],
        "made_by": "recurrify experiment run demo-weights --tokens 40000000",
    }
