"""Names of a package that are imported when they are first used: torch and transformers take seconds."""

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazily(package: str) -> Callable[[str], Any]:
    """A package's `__getattr__` for the names that its `__init__.py` imports only `if TYPE_CHECKING`."""

    @cache
    def homes() -> dict[str, str]:
        """The module of each name."""
        tree = ast.parse(inspect.getsource(sys.modules[package]))
        blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
        return {name.name: line.module or "" for line in lines for name in line.names}

    def load(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes()[name]), name)

    return load
