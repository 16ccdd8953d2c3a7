"""Functions that wait for a package's import run once, right after it, and do not change the package."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from recurrify.after_import import after_import

PACKAGE = "waited_for_in_a_test"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a package that was not imported yet."""
    file = tmp_path / PACKAGE / "__init__.py"
    file.parent.mkdir()
    file.write_text("ready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    sys.modules.pop(PACKAGE, None)


def is_ready() -> bool:
    return getattr(sys.modules[PACKAGE], "ready", False)


def test_actions_run_once_after_the_import(package: Path) -> None:
    seen: list[bool] = []
    after_import(PACKAGE, lambda: seen.append(is_ready()))
    after_import(PACKAGE, lambda: seen.append(is_ready()))
    assert importlib.util.find_spec(PACKAGE) is not None
    assert seen == []  # finding it does not import it
    imported = importlib.import_module(PACKAGE)
    assert seen == [True, True]
    importlib.reload(imported)
    assert seen == [True, True]


def test_actions_run_at_once_if_it_is_imported_already(package: Path) -> None:
    importlib.import_module(PACKAGE)
    seen: list[bool] = []
    after_import(PACKAGE, lambda: seen.append(is_ready()))
    assert seen == [True]


def test_package_keeps_its_own_loader(package: Path) -> None:
    package.write_text("loaders = (__loader__, __spec__.loader)\n")
    after_import(PACKAGE, lambda: None)
    imported = importlib.import_module(PACKAGE)
    assert [type(loader) for loader in imported.loaders] == [SourceFileLoader, SourceFileLoader]
    assert type(imported.__spec__.loader) is type(imported.__loader__) is SourceFileLoader


def test_failed_import_can_be_repeated(package: Path) -> None:
    seen: list[bool] = []
    after_import(PACKAGE, lambda: seen.append(is_ready()))
    package.write_text("raise RuntimeError('broken')\n")
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module(PACKAGE)
    assert seen == []
    package.write_text("ready = 'now, in a file of another length'\n")
    importlib.invalidate_caches()
    importlib.import_module(PACKAGE)
    assert seen == ["now, in a file of another length"]


def test_interrupted_action_runs_at_the_next_import(package: Path) -> None:
    tries: list[int] = []

    def interrupted_at_first() -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            raise KeyboardInterrupt

    after_import(PACKAGE, interrupted_at_first)
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module(PACKAGE)
    assert PACKAGE not in sys.modules
    importlib.import_module(PACKAGE)
    assert tries == [0, 1]


def test_a_package_that_is_not_installed() -> None:
    after_import("no_such_package_anywhere", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package_anywhere")
