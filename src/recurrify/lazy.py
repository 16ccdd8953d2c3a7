"""Names of a package that are imported when they are first used: torch and transformers take seconds.

Type checkers and editors read the names in `if TYPE_CHECKING`: a table would repeat all of them. From
Python 3.15 on, PEP 810 (`lazy import`) replaces this file.
"""

import dis
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["lazily"]


def lazily(package: str) -> Callable[[str], Any]:
    """A package's `__getattr__` for the names that its `__init__.py` imports only `if TYPE_CHECKING`.

    `dir` of the package lists them, too.
    """

    @cache
    def homes() -> dict[str, str]:
        """The module of each name, from the compiled code, which is there in installations without source, too."""
        found, module, loader = {}, "", sys.modules[package].__loader__
        for instruction in dis.get_instructions(loader.get_code(package)):  # type: ignore[union-attr]
            if instruction.opname == "IMPORT_NAME":
                module = instruction.argval
            elif instruction.opname == "IMPORT_FROM":
                found[instruction.argval] = module
        return found

    def load(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes()[name]), name)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes()})

    vars(sys.modules[package])["__dir__"] = listed
    return load
