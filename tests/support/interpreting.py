"""Triton's interpreter, which runs kernels on a CPU."""

import os
import sys
from importlib import import_module

from support.processes import forked


def check_interpreted(module: str, check: str) -> None:
    """Call a module's function in a process in which Triton is imported with its interpreter."""

    def work() -> None:
        os.environ["TRITON_INTERPRET"] = "1"  # read by Triton when it is imported
        for name in list(sys.modules):
            package = name.partition(".")[0]
            if package in ("triton", "recurrify", "recurrify_papers", "support", module) and "triton._C" not in name:
                del sys.modules[name]
        _let_ranges_be_computed()
        getattr(import_module(module), check)()

    forked(work)


def _let_ranges_be_computed() -> None:
    """Triton 3.6's interpreter converts arrays of one number in a way that numpy no longer supports."""
    from triton.runtime import interpreter

    usual = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        usual(tensor, scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    interpreter._patch_lang_tensor = patched
