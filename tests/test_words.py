"""The words that this project does not use in what people read: README, docs, help texts, pages, docstrings."""

import ast
import io
import re
import tokenize
from pathlib import Path

import typer

from recurrify.cli.main import app

ROOT = Path(__file__).parent.parent
REPLACED = {
    r"told|untold": "reported, logged, or an error",
    r"anew|once more": "again, from scratch, retrain",
    r"goes on from|given again|go on with it": "resumes; run the same command again",
    r"makes little of|left to itself|serves best": "ignores; by default; works best",
    r"is refused|are refused|refuses": "raises an error; is rejected",
    r"mended": "fixed",
    r"nobody": "no one, or name the reader",
    r"stand-ins?": "parameter aliases",
    r"numbers passed on": "state size",
    r"lanes?": "batch rows",
    r"faint": "initial scale",
    r"held alone": "run lock",
    r"beside|side by side": "next to, compared with, in parallel",
    r"says so|say so": "reports it",
    r"goes on|go on": "continues, resumes",
}
KERNELS = (
    "attention/kernels/rsa_blocks",
    "attention/kernels/rsa_parts",
    "attention/kernels/rsa_kernels",
    "speed/cross_entropy",
)
ALLOWED = {(f"src/recurrify/{kernel}.py", word) for kernel in KERNELS for word in ("lane", "lanes")}
"""(file, word) pairs where the word has its ordinary meaning."""


def texts() -> list[tuple[str, str]]:
    """Everything that is checked, by name."""
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    files += [*ROOT.glob("src/**/templates/*.j2"), *ROOT.glob("papers/src/**/templates/*.j2")]
    found = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in files]
    sources = [*ROOT.glob("src/recurrify/**/*.py"), *ROOT.glob("papers/src/**/*.py"), *ROOT.glob("tools/*.py")]
    sources += [*ROOT.glob("tests/support/*.py"), ROOT / "conftest.py"]
    found += [(str(path.relative_to(ROOT)), words_of(path.read_text(encoding="utf-8"))) for path in sources]
    return [*found, *help_texts(typer.main.get_command(app), "recurrify")]


def words_of(source: str) -> str:
    """Comments, docstrings and other strings of a program."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    nodes = ast.walk(ast.parse(source))
    return "\n".join(comments + [str(node.value) for node in nodes if isinstance(node, ast.Constant)])


def help_texts(command: object, name: str) -> list[tuple[str, str]]:
    """Help of a command, its options and its subcommands."""
    own = [str(getattr(command, "help", None) or "")]
    own += [str(getattr(option, "help", None) or "") for option in getattr(command, "params", [])]
    found = [(f"{name} --help", "\n".join(own))]
    for word, inner in getattr(command, "commands", {}).items():
        found += help_texts(inner, f"{name} {word}")
    return found


def test_plain_words() -> None:
    found = {
        (name, match.group(0)): better
        for name, text in texts()
        for words, better in REPLACED.items()
        for match in re.finditer(rf"\b({words})\b", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S), re.IGNORECASE)
        if (name, match.group(0).lower()) not in ALLOWED
    }
    assert not found, "\n".join(f"{name}: instead of {word!r} write {better}" for (name, word), better in found.items())
