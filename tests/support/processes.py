"""Other processes, seen from a test."""

import gc
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import torch


class Printed(NamedTuple):
    """What a process wrote."""

    output: str
    errors: str


def forked(work: Callable[[], object], seconds: float = 600.0) -> Printed:
    """Call a function in a forked process, which starts in milliseconds: a new one imports torch for seconds.

    Raises:
        AssertionError: The function raised an error, or took longer.
    """
    with TemporaryFile() as output, TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setsid()
                become_a_program(output.fileno(), errors.fileno())
                warnings.simplefilter("ignore")
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        ended = comes(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, seconds)
        if not ended:
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        for file in (output, errors):
            file.seek(0)
        printed = Printed(output.read().decode(), errors.read().decode())
    assert ended, f"no end after {seconds} seconds: {printed.errors[-4000:]}"
    assert status == 0, printed.errors[-4000:]
    return printed


def become_a_program(output: int, errors: int, encoding: str = "utf-8") -> None:
    """Give a forked process streams of its own, and make torch usable in it."""
    for number, stream in ((1, output), (2, errors)):
        os.dup2(stream, number)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", encoding=encoding, closefd=False) for number in (1, 2))  # noqa: SIM115
    torch.set_num_threads(torch.get_num_threads())  # its pool is made again before threads of a model's loading race
    torch.cuda.is_available = lambda: False  # CUDA does not work after a fork
    gc.freeze()  # looking for garbage among the parent's objects would copy their memory


def comes(condition: Callable[[], bool], seconds: float = 180.0) -> bool:
    """Whether it becomes true within three minutes: on a busy machine two imports take one minute."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def runs(process: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])
