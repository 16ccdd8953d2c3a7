"""Work in several processes of one thread each, side by side, as the demo trains its models."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, get_context
from typing import NamedTuple

import torch

from recurrify.ending_with_parent import end_with_parent
from recurrify.interrupts import answering_ctrl_c
from recurrify.speed.compiling import compile_alone
from recurrify_papers.bench.timing import NotMeasuredError, trouble_of

WARM_UPS = 2
"""Steps of a new process before it says that it is ready: what is chosen at first is not to be timed."""
SECONDS_TO_END = 10.0

Build = Callable[[int], Callable[[], None]]
"""Given a worker's number, makes its step; pickled, so a function of a module or a `partial` of one."""


class Report(NamedTuple):
    """What a worker answers after each step."""

    process: int
    steps: int
    threads: int


class Workers:
    """As many processes as asked for: started by `wake`, one step each by `step`, ended by `rest`.

    A worker that fails or dies is a reason not to be measured, with what it said; none outlives this process.
    """

    def __init__(self, build: Build, count: int) -> None:
        self.build, self.count = build, count
        self.running: list[_Worker] = []
        self.reports: list[Report] = []
        """The latest, by worker."""

    def wake(self) -> None:
        """Until all are ready."""
        assert not self.running
        for number in range(self.count):
            self.running.append(_Worker(self.build, number))
        self.reports = [worker.report() for worker in self.running]

    def step(self) -> None:
        for worker in self.running:
            worker.ask()
        self.reports = [worker.report() for worker in self.running]

    def rest(self) -> None:
        """By themselves, so that they tidy up what a compiler has started; one that does not is ended."""
        for worker in self.running:
            worker.leave()
        deadline = time.monotonic() + SECONDS_TO_END
        for worker in self.running:
            worker.end(deadline)
        self.running = []


class _Worker:
    def __init__(self, build: Build, number: int) -> None:
        context = get_context("spawn")  # a process that has threads cannot safely be forked
        self.here, there = context.Pipe()
        arguments = (build, number, os.getpid(), torch.get_float32_matmul_precision(), there)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.is_ready = False
        try:
            with answering_ctrl_c(signal.SIG_IGN):  # which it takes over: who has started it ends it
                self.process.start()
        except OSError as error:
            self.here.close()
            raise NotMeasuredError(f"a process side by side could not be started ({error})") from None
        finally:
            there.close()  # so that its end is heard of here

    def ask(self) -> None:
        try:
            self.here.send(None)
        except OSError:
            raise self._died() from None

    def report(self) -> Report:
        connection.wait([self.here, self.process.sentinel])
        try:
            # What it said last is heard even where it has ended since.
            answer = self.here.recv() if self.here.poll() else None
        except (EOFError, OSError):
            answer = None
        if answer is None:
            raise self._died()
        if isinstance(answer, str):
            raise NotMeasuredError(answer)
        found: Report = answer
        self.is_ready = True
        return found

    def _died(self) -> NotMeasuredError:
        self.process.join(SECONDS_TO_END)
        return NotMeasuredError(f"a process side by side ended by itself (exit code {self.process.exitcode})")

    def leave(self) -> None:
        """It hears of that as soon as it waits to be asked, which one that is being made does not."""
        self.here.close()
        if not self.is_ready:
            self.process.kill()

    def end(self, deadline: float) -> None:
        self.process.join(max(0.0, deadline - time.monotonic()))
        self.process.kill()
        self.process.join()
        self.process.close()


def _work(build: Build, number: int, parent: int, precision: str, there: connection.Connection) -> None:
    """Step whenever asked to, until nobody is there to ask."""
    end_with_parent(parent)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(precision)
    compile_alone()
    try:
        step = build(number)
        for _ in range(WARM_UPS):
            step()
        steps = WARM_UPS
        while True:
            there.send(Report(os.getpid(), steps, torch.get_num_threads()))
            try:
                there.recv()
            except (EOFError, OSError):
                return
            step()
            steps += 1
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0][:120]
        with suppress(OSError):  # nobody may be there any more
            there.send(trouble_of(error) or f"a process side by side failed ({type(error).__name__}: {text})")
