"""A size of next to nothing: the tests' tiny model and texts in place of everything."""

from pathlib import Path

import pytest

from recurrify_papers.experiments import sizes as size_module
from recurrify_papers.experiments.beyond_sizes import WHOLE_WINDOW, Beyond, kv, memory_tokens, tail
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.sizes import Size
from support.made_up_runs import few_samples, rounds
from support.runs import model_folder, text_folder

__all__ = ["few_samples", "rounds"]


def micro_size(base: Path, texts: Path) -> Size:
    return Size(
        name="tiny",
        purpose="tests",
        base=str(base),
        books=str(texts),
        wiki=str(texts),
        differences=("everything",),
        window=8,
        window_sizes=(6, 8, 12),
        overlaps=(0, 3),
        plain_overlaps=(5,),
        best_overlaps={"books": (0, 3), "wiki": (0,)},
        frontier_overlaps=(0, 3),
        training={
            "batch": 4,
            "windows": 3,
            "max_tokens": 300,
            "valid_every": 150,
            "patience": 0,
            "warmup_steps": 1,
            "checkpoint": False,
        },
        wiki_training={"group_by_length": True},
        candidates=(1e-3, 1e-2),
        added_rate=2.0,
        tuning_tokens=200,
        seeds=(0, 1),
        valid_tokens=40,
        best={"mechanism": "tail", "tail": 3, "pooled_slots": 1},
        contexts=6,
        predicted_tokens=30,
        xlnet={"learning_rates": (1e-3, 1e-2), "max_tokens": 200},
        curve={"valid_every": 100},
        cost={"rows": 2, "windows": 2, "lengths": (8, 16), "new_tokens": 4, "repeats": 2},
        lengths={
            "tasks": ("parity",),
            "seeds": (0, 1),
            "rates": (1e-3, 1e-2),
            "steps": 2,
            "batch": 4,
            "lengths": (20, 40, 60),
            "valid_sequences": 8,
            "test_sequences": 8,
        },
        complexity={
            "lengths": (8, 16, 32),
            "widths": (64, 128, 192),
            "width": 64,
            "length": 16,
            "longest_slow": 32,
            "repeats": 1,
        },
        scratch={
            "seeds": (0, 1),
            "symbols": "bytes",
            "steps": 3,
            "batch": 2,
            "length": 8,
            "learning_rate": 1e-2,
            "valid_every": 48,
            "valid_tokens": 50,
            "test_tokens": 50,
            "layers": 2,
            "width": 16,
            "small_widths": (8,),
            "smallest": None,
            "head_width": 4,
            "inner": 16,
            "block": 4,
            "states": 2,
            "own_rate": None,
        },
        beyond=micro_beyond(),
    )


def micro_beyond() -> Beyond:
    return Beyond(
        mechanisms={"carry-1": {"mechanism": "carry"}, "tail-3": tail(3), "memory-tokens-2": memory_tokens(2)},
        seeded=("tail-3",),
        longer=(),
        untrained=("plain", "tail-3"),
        ours="memory-tokens-2",
        slots="tail-3",
        frozen=("memory-tokens-2",),
        frozen_candidates=(1e-2, 1e-1),
        token_counts=(100, 300),
        seeded_tokens=100,
        start_tokens=200,
        start_points=2,
        curriculum=((2, 0.5), (3, 0.5)),
        rotary_model=None,
        rotary={
            "tail-3": tail(3),
            "tail-9": tail(9),
            "kv-window": kv(WHOLE_WINDOW),
            "sliding-window": kv(WHOLE_WINDOW, sliding=True),
        },
        rotary_seeds=(0,),
        rotary_candidates=(1e-3, 1e-2),
    )


@pytest.fixture(scope="session")
def size(tmp_path_factory: pytest.TempPathFactory) -> Size:
    base = model_folder(tmp_path_factory.mktemp("models") / "base")
    texts = text_folder(tmp_path_factory.mktemp("data") / "texts", documents=60)
    return micro_size(base, texts)


@pytest.fixture
def lab(size: Size, tmp_path: Path) -> Lab:
    said: list[str] = []
    lab = Lab(size, tmp_path / "experiments", said.append)
    lab.rates = {"plain": 1e-2, "carry": 1e-2, "best": 1e-2}
    return lab


@pytest.fixture
def known(size: Size, monkeypatch: pytest.MonkeyPatch) -> Size:
    """The size by its name, for the command line."""
    monkeypatch.setitem(size_module.SIZES, "tiny", size)
    return size
