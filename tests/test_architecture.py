"""The papers use only public names of recurrify: those in an `__all__` of the package or of one of its parts."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

PAPERS = Path(__file__).parent.parent / "papers" / "src"


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
