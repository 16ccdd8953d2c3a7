"""A size of next to nothing: the tests' tiny model and texts for every experiment."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from recurrify_papers import plan as plan_module
from recurrify_papers import rows as rows_module
from recurrify_papers.experiment import experiments, run_experiments
from recurrify_papers.sizes import SIZES, Size, tail
from support.fixtures import base, many_texts

__all__ = ["base", "many_texts"]
WINDOW = 8
FEW = 20
VARIANTS = {
    "plain": plan_module.VARIANTS["plain"],
    "tail-1": {"kind": "best", "recurrence": tail(1)},
    "tail-4": {"kind": "best", "recurrence": tail(4)},
}
"""Those that windows of 8 tokens and 3 layers have a place for."""


def mini_size(base: Path, texts: Path) -> Size:
    return Size(
        name="tiny",
        purpose="tests",
        base=str(base),
        books=str(texts),
        wiki=str(texts),
        differences=("everything",),
        window=WINDOW,
        window_sizes=(WINDOW,),
        overlaps=(0,),
        plain_overlaps=(3,),
        frontier_overlaps=(0, 3),
        training={
            "batch": 4,
            "windows": 3,
            "max_tokens": 100,
            "valid_every": 50,
            "patience": 0,
            "warmup_steps": 1,
            "checkpoint": False,
        },
        rates=(1e-2,),
        added_rate=2.0,
        seeds=(0,),
        valid_tokens=40,
        best=tail(3),
        best_from=("tail-1", "tail-4"),
        own={
            "topics": {"contexts": 6},
            "thesis-metrics": {"tokens": 30},
            "thesis-enwik8": {"rates": (1e-2,)},
            "thesis-cost": {
                "width": 16,
                "layers": 2,
                "window": 8,
                "positions": 20,
                "windows": 3,
                "batches": (2,),
                "documents": 2,
                "document_tokens": 20,
                "prompts": (8,),
                "rounds": 1,
            },
            "table3": {
                "made_up": 30,
                "epochs": 1.0,
                "rates": (3e-3,),
                "window": 24,
                "distractors": 1,
                "seeds": 2,
                "warmup_steps": 1,
            },
            "slides-lengths": {
                "tasks": ("parity",),
                "seeds": (0, 1),
                "rates": (1e-2,),
                "steps": 2,
                "batch": 4,
                "lengths": (20, 60),
                "valid_sequences": 8,
                "test_sequences": 8,
            },
            "slides-complexity": {
                "lengths": (8, 16, 32),
                "widths": (64, 128, 192),
                "width": 64,
                "length": 16,
                "longest_slow": 32,
                "repeats": 1,
            },
            "rsa-enwik8": {
                "symbols": "bytes",
                "steps": 2,
                "batch": 2,
                "length": 64,
                "learning_rate": 1e-2,
                "valid_every": 128,
                "valid_tokens": 200,
                "test_tokens": 200,
                "layers": 2,
                "width": 16,
                "small_widths": (16,),
                "head_width": 4,
                "inner": 16,
                "block": 16,
                "states": 2,
            },
            "mechanisms": {
                "mechanisms": {
                    "carry-1": {"mechanism": "carry"},
                    "memory-tokens-2": {"mechanism": "memory_tokens", "tokens": 2},
                },
                "seeded": (),
                "longer": (),
                "untrained": ("plain",),
                "ours": "memory-tokens-2",
                "slots": "memory-tokens-2",
            },
            "frozen": {"names": ("memory-tokens-2",), "rates": (1e-2,)},
            "tokens": {"counts": (50,), "seeded": 50},
            "starts": {"tokens": 100, "points": 2, "curriculum": ((2, 0.5), (3, 0.5))},
            "rotary": {"model": None, "names": ("tail-16", "kv-window"), "seeds": (0,), "rates": (1e-2,)},
            "two-part": {"seeds": (0,), "steps": 3, "documents": 20},
            "settle": {
                "model": None,
                "rates": (1e-2,),
                "tuning_tokens": None,
                "test_tokens": 40,
                "short_window": 4,
                "tokens": 100,
                "more_tokens": 150,
                "most_tokens": 150,
                "overlaps": (3,),
            },
        },
    )


@pytest.fixture(scope="session")
def mini(base: Path, many_texts: Path) -> Size:
    return mini_size(base, many_texts)


@pytest.fixture(scope="session")
def patched() -> Iterator[None]:
    """Few bootstrap samples, and variants that fit tiny windows."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("interval", "relative_gain"):
            found = getattr(rows_module, name)
            patch.setattr(rows_module, name, lambda *one, found=found, **more: found(*one, **more, samples=FEW))
        patch.setattr(plan_module, "VARIANTS", plan_module.VARIANTS | VARIANTS)
        patch.setattr("recurrify_papers.yoshida2020.tables.VARIANTS", VARIANTS)
        patch.setattr("recurrify_papers.beyond.mechanisms.CORPORA", ("books",))
        starts = {"plain": ("plain", "", {}), "carry-curriculum": ("carry", "", {"curriculum": True})}
        patch.setattr("recurrify_papers.beyond.training.STARTS", starts)
        changes = {"both": ("both", {}), "constant rate": ("carry-1", {"schedule": "constant_with_warmup"})}
        patch.setattr("recurrify_papers.beyond.settle.CHANGES", changes)
        patch.setattr("recurrify.results.git_state", lambda root: {"commit": None, "dirty": None})
        yield


@pytest.fixture(scope="session")
def done(mini: Size, patched: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all experiments, run once."""
    root = tmp_path_factory.mktemp("experiments")
    gc.freeze()  # trainings collect garbage, which takes long with so many modules
    run_experiments(list(experiments().values()), mini, root, lambda text: None)
    gc.unfreeze()
    return root


@pytest.fixture
def known(mini: Size, monkeypatch: pytest.MonkeyPatch) -> Size:
    """The mini size as `tiny` on the command line."""
    monkeypatch.setitem(SIZES, "tiny", mini)
    return mini
