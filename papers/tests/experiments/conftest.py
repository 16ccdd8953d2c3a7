"""A size of next to nothing: the tests' tiny model and texts for every experiment."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from recurrify_papers import plan as plan_module
from recurrify_papers import rows as rows_module
from recurrify_papers.experiment import experiments, run_experiments
from recurrify_papers.sizes import SIZES, Size, tail
from support.fixtures import base, many_texts

__all__ = ["base", "many_texts"]
FEW = 20
VARIANTS = {
    "plain": plan_module.VARIANTS["plain"],
    "tail-1": {"kind": "best", "recurrence": tail(1)},
    "tail-4": {"kind": "best", "recurrence": tail(4)},
}
"""Those that windows of 8 tokens and 3 layers have a place for."""


def as_tuples(value: Any) -> Any:
    """Sizes have tuples, YAML has lists."""
    if isinstance(value, dict):
        return {name: as_tuples(one) for name, one in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


@pytest.fixture(scope="session")
def mini(base: Path, many_texts: Path) -> Size:
    settings = yaml.safe_load((Path(__file__).parent / "mini_size.yaml").read_text(encoding="utf-8"))
    return Size(**as_tuples(settings), base=str(base), books=str(many_texts), wiki=str(many_texts))


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
