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
PAPERS = ROOT / "papers"
REACHES_INSIDE = {
    "recurrify.cli.main.main",  # the command, which tests run in their own process
    "recurrify.interrupts._received",  # a test forgets the signal that it sent
    "recurrify.speed.products",  # a test runs as on another processor
}
"""Private names that tests of the papers use."""


def used(source: str) -> set[str]:
    """What a file uses of recurrify, by the module that it takes it from: `from` imports, and attributes of modules."""
    tree = ast.parse(source)
    found, modules = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{one.name}" for one in node.names}
            modules |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
            modules |= {one.asname: one.name for one in node.names if one.asname}
            modules |= {name: name for one in node.names if not one.asname for name in [one.name.split(".")[0]]}
    for node in ast.walk(tree):
        chain = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else [""]
        if chain[0] in modules:
            found.add(".".join([modules[chain[0]], *chain[1:]]))
    return {name for name in found if name.split(".")[0] == "recurrify"}


def is_public(name: str) -> bool:
    """Whether a name, of which the first words are modules, is in the `__all__` of the last of them."""
    module, rest = import_module("recurrify"), name.split(".")[1:]
    while rest:
        shown = getattr(module, "__all__", ())
        if rest[0] in shown or rest[0].startswith("__"):
            return True
        try:
            module = import_module(f"{module.__name__}.{rest[0]}")
        except ModuleNotFoundError:
            return False
        rest = rest[1:]
    return hasattr(module, "__all__")


@pytest.mark.parametrize("path", sorted(PAPERS.rglob("*.py")), ids=lambda path: str(path.relative_to(PAPERS)))
def test_papers_use_public_names(path: Path) -> None:
    names = used(path.read_text(encoding="utf-8"))
    allowed = REACHES_INSIDE if path.is_relative_to(PAPERS / "tests") else set()
    private = {name for name in names if not is_public(name)} - allowed
    assert not private, f"{path} uses private names: {', '.join(sorted(private))}"


@pytest.mark.parametrize(
    "source",
    [
        "from recurrify.speed.verify import take_step",
        "import recurrify.speed.verify",
        "import recurrify.speed.verify as verify",
        "import recurrify\nrecurrify.speed.verify.take_step",
        "import recurrify.speed as s\ns.verify.take_step()",
        "from recurrify import speed\nspeed.verify.take_step",
        "from recurrify import interrupts\ninterrupts._received",
    ],
)
def test_private_names_are_found(source: str) -> None:
    assert any(not is_public(name) for name in used(source))


def test_public_names_are_allowed() -> None:
    source = (
        "import recurrify.speed as s\nfrom recurrify import State, interrupts\ns.take_step, interrupts.CTRL_C, State.x"
    )
    assert all(map(is_public, used(source)))


def test_seam_between_mechanisms_and_the_model_is_narrow() -> None:
    methods = [name for name, value in vars(Mechanism).items() if callable(value) and not name.startswith("__")]
    assert len(methods) <= 10, methods
    assert len(fields(WindowContext)) <= 8


def test_few_hard_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert len(project["dependencies"]) <= 11


def test_committed_results_are_few_and_small() -> None:
    files = [path for path in (ROOT / "papers" / "results").rglob("*") if path.is_file()]
    assert 0 < len(files) <= 80
    assert sum(path.stat().st_size for path in files) <= 6_000_000


@pytest.mark.parametrize("source", ["src", "papers/src", "tests", "papers/tests", "tools"])
def test_files_are_short(source: str) -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / source).rglob("*.py")}
    assert lines
    assert not {str(path): count for path, count in lines.items() if count > 500}
