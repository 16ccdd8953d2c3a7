"""docs/scratch.md: its tables are the settings and defaults that the architectures have."""

import re
from pathlib import Path
from typing import Any

import pytest

from recurrify.attention import RSAConfig
from recurrify.models.language import ARCHITECTURES, RSA_PREFIX, Architecture

PAGE = Path(__file__).parent.parent / "docs" / "scratch.md"
ABSENT = "–"


def told_settings() -> dict[str, dict[str, str]]:
    """By architecture and setting, the defaults of all tables of settings."""
    found: dict[str, dict[str, str]] = {name: {} for name in ARCHITECTURES}
    header: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] == "setting":
            header = cells
        elif not cells:
            header = []
        elif header and cells[0].startswith("`"):
            for names, value in zip(header[1:-1], cells[1:-1], strict=True):
                for arch in re.findall(r"`([^`]+)`", names):
                    if value != ABSENT:
                        found[arch][cells[0].strip("`")] = value
    return found


def default_of(architecture: Architecture, name: str) -> str:
    value: Any
    if name.startswith(RSA_PREFIX):
        own, recurrence = name.removeprefix(RSA_PREFIX), architecture.recurrence or {}
        value = recurrence[own] if own in recurrence else RSAConfig.__dataclass_fields__[own].default
    else:
        value = architecture.defaults.get(name, architecture.config.__dataclass_fields__[name].default)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_settings_and_their_defaults(arch: str) -> None:
    architecture = ARCHITECTURES[arch]
    # Of a segment: an option of its own.
    names = [name for name in architecture.settings() if name != "target_length"]
    assert told_settings()[arch] == {name: default_of(architecture, name) for name in names}


def test_every_architecture_is_described() -> None:
    first = PAGE.read_text(encoding="utf-8").split("## ")[0]
    rows = [line.split("|")[1] for line in first.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} - {"--arch"} == set(ARCHITECTURES)
