"""Run a function as soon as another package has been imported, without importing it.

`import recurrify` has to be quick, for `--help`, but transformers' Auto classes must know recurrent models afterwards.
transformers has no entry points for models of other packages, and importing it takes seconds. So its import is awaited.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import dropwhile
from types import ModuleType

Action = Callable[[], object]


def after_import(package: str, action: Action) -> None:
    """Call `action` after the import of `package`; now if it is imported already."""
    if package in sys.modules:
        action()
    else:
        _WAITING.actions.setdefault(package, []).append(action)
        if _WAITING not in sys.meta_path:
            sys.meta_path.insert(0, _WAITING)


class _Finder(MetaPathFinder):
    """Lets the finders after it find an awaited package, and loads it with the actions."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.actions:
            return None
        behind = list(dropwhile(lambda finder: finder is not self, sys.meta_path))[1:]
        found = (finder.find_spec(fullname, path, target) for finder in behind)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenActing(spec.loader, self.actions)
        return spec


class _ThenActing(Loader):
    """Loads like another loader, gives the module back to that one, and runs the actions."""

    def __init__(self, loader: Loader, actions: dict[str, list[Action]]) -> None:
        self.loader, self.actions = loader, actions

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        for action in self.actions.get(name, []):
            action()
        self.actions.pop(name, None)  # only now: an import that was interrupted is tried again


_WAITING = _Finder()
