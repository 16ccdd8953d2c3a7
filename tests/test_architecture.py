"""The papers use only public names of recurrify: those in an `__all__` of the package or of one of its parts. What is
small by design stays small; `tests/cli/test_cli_start.py` does this for options and help."""

import ast
import tomllib
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from recurrify.mechanisms import Mechanism, WindowContext

ROOT = Path(__file__).parent.parent
PAPERS = ROOT / "papers" / "src"


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of everything that a file imports from recurrify."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = [(node.module, name.name) for node in found for name in node.names if node.module]
    return [(module, name) for module, name in names if module.split(".")[0] == "recurrify"]


@pytest.mark.parametrize("path", sorted(PAPERS.rglob("*.py")), ids=lambda path: str(path.relative_to(PAPERS)))
def test_papers_import_public_names(path: Path) -> None:
    private = [
        f"{module}.{name}"
        for module, name in imported(path)
        if name not in getattr(import_module(module), "__all__", ())
    ]
    assert not private, f"{path} imports private names: {', '.join(private)}"


def test_seam_between_mechanisms_and_the_model_is_narrow() -> None:
    methods = [name for name, value in vars(Mechanism).items() if callable(value) and not name.startswith("__")]
    assert len(methods) <= 10, methods
    assert len(fields(WindowContext)) <= 8


def test_few_hard_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert len(project["dependencies"]) <= 10


def test_committed_results_are_few_and_small() -> None:
    files = [path for path in (ROOT / "papers" / "results").rglob("*") if path.is_file()]
    assert 0 < len(files) <= 80
    assert sum(path.stat().st_size for path in files) <= 6_000_000


@pytest.mark.parametrize("source", ["src", "papers/src", "tests", "papers/tests", "tools"])
def test_files_are_short(source: str) -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / source).rglob("*.py")}
    assert lines
    assert not {str(path): count for path, count in lines.items() if count > 500}
