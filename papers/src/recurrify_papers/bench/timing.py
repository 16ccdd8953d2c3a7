"""Several ways of doing the same work, timed in turns, so that a machine that warms up or is shared slows all alike."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from recurrify_papers.bench.memory import PeakMemory, free_memory

DOES_NOT_FIT = "does not fit"
NO_TIME = "no time left"
WRONG = "wrong results"
NOTHING_HELD = (None, NO_TIME, WRONG)
"""After which no error holds on to memory; to look for it takes a while."""
FEWEST_TURNS = 2
"""One turn on a shared machine says nothing."""
Row = dict[str, Any]


def _nothing() -> None:
    pass


@dataclass
class Entrant:
    """One way of doing the work."""

    name: str
    run: Callable[[], Any]
    """One repeat, which is timed."""
    wake: Callable[[], None] = _nothing
    """Before its turn; not timed."""
    rest: Callable[[], None] = _nothing
    """After its turn: lets go of what the others need the memory for."""
    own_bytes: Callable[[], int] = lambda: 0
    """What it keeps between turns, which counts as its own."""
    holds_graphs: bool = False
    repeats: int = 1
    """That one run does side by side: what is noted is the run's time over their number."""
    elsewhere: bool = False
    """Whether it works in other processes, whose memory is not measured."""


@dataclass
class Timed:
    """What was found of one entrant."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    trouble: str | None = None
    """Why there is nothing, or nothing more: it does not fit, for example."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    def rate(self, work: float) -> float | None:
        return None if self.median is None else work / self.median


class Turns:
    """Runs entrants in turns; what fails for a known reason leaves the others in peace.

    Memory is measured before the first turn and in no turn: it takes an allocator that has nothing in store, and to
    fill its store takes time, from which the graphs alone, with their own, would be spared.
    """

    def __init__(
        self,
        device: torch.device,
        rounds: int,
        out_of_time: Callable[[], bool] = lambda: False,
        advance: Callable[[int], None] = lambda done: None,
        warm_ups: int = 1,
    ) -> None:
        self.device, self.rounds, self.warm_ups = device, rounds, warm_ups
        self.out_of_time, self.advance = out_of_time, advance
        self.warm: set[int] = set()
        """Who has run in this process: what is compiled or chosen at first is not to be timed."""

    def take(
        self,
        entrants: Sequence[Entrant],
        earlier: Sequence[Mapping[str, Any] | None] | None = None,
        keep: Callable[[list[Timed]], None] = lambda found: None,
    ) -> list[Timed]:
        """`earlier` are the rows of an unfinished run, to go on from; `keep` is told what there is after each round.

        Memory that was measured before any turn of an earlier run is not measured again: whoever has little time for
        each run would never come to the first turn.
        """
        found = whole_rounds(earlier or [None] * len(entrants))
        for entrant, timed in zip(entrants, found, strict=True):
            if timed.peak_bytes is None and not timed.seconds and not entrant.elsewhere:
                self._attempt(entrant, timed, self._measure_memory)
            self.advance(1)
        keep(found)
        for turn in range(self.rounds):
            for entrant, timed in zip(entrants, found, strict=True):
                if len(timed.seconds) <= turn:
                    self._attempt(entrant, timed, self._measure_time)
                self.advance(1)
            keep(found)
        return found

    def _measure_memory(self, entrant: Entrant, timed: Timed) -> None:
        if entrant.holds_graphs:
            memory, own = PeakMemory(self.device, reserved=True), entrant.own_bytes()
        entrant.wake()
        self._warm_up(entrant)
        wait(self.device)
        if not entrant.holds_graphs:
            memory, own = PeakMemory(self.device), entrant.own_bytes()
        entrant.run()
        wait(self.device)
        beyond = memory.so_far()
        timed.peak_bytes = None if beyond is None else beyond + own

    def _measure_time(self, entrant: Entrant, timed: Timed) -> None:
        entrant.wake()
        self._warm_up(entrant)
        entrant.run()  # fills the allocator's store, which nobody may empty before the clock
        wait(self.device)
        started = time.perf_counter()
        entrant.run()
        wait(self.device)
        timed.seconds.append((time.perf_counter() - started) / entrant.repeats)

    def _warm_up(self, entrant: Entrant) -> None:
        if id(entrant) not in self.warm:
            for _ in range(self.warm_ups):
                entrant.run()
        self.warm.add(id(entrant))

    def _attempt(self, entrant: Entrant, timed: Timed, measure: Callable[[Entrant, Timed], None]) -> None:
        if timed.trouble is None and self.out_of_time():
            timed.trouble = NO_TIME
        if timed.trouble is not None:
            return
        try:
            measure(entrant, timed)
        except Exception as error:
            timed.trouble = trouble_of(error)
            if timed.trouble is None:
                raise
        finally:
            entrant.rest()
        thoroughly = entrant.holds_graphs or timed.trouble not in NOTHING_HELD
        free_memory(self.device, thoroughly)  # not in `finally`: the error holds on to what did not fit


def whole_rounds(rows: Sequence[Mapping[str, Any] | None]) -> list[Timed]:
    """What an unfinished run has left of each: the rounds in which all had their turn, so that ratios stay within one
    run. Who had no time has it now."""
    found = []
    for row in rows:
        timed = Timed() if row is None else Timed(list(row["seconds"]), row.get("peak_bytes"), row["trouble"])
        timed.trouble = None if timed.trouble == NO_TIME else timed.trouble
        found.append(timed)
    counts = [len(timed.seconds) for timed in found if timed.trouble is None]
    for timed in found if counts else ():
        del timed.seconds[min(counts) :]
    return found


def still_missing(names: Iterable[str], found: Iterable[Timed], rounds: int) -> list[str]:
    """Whose turns are not all taken, for no reason but that it is not done yet."""
    return [
        name for name, timed in zip(names, found, strict=True) if timed.trouble is None and len(timed.seconds) < rounds
    ]


class NotMeasuredError(Exception):
    """Says in its words why an entrant is left out."""


def trouble_of(error: Exception) -> str | None:
    """In a few words, if it is something that a benchmark has to expect."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, NotMeasuredError):
        return text
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return DOES_NOT_FIT
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return f"could not be compiled ({text[:120]})"
    return None


def tried(work: Callable[[], Any], device: torch.device) -> str | None:
    """What kept it from being done, of what a benchmark has to expect."""
    trouble = None
    try:
        work()
    except Exception as error:
        trouble = trouble_of(error)
        if trouble is None:
            raise
    if trouble not in NOTHING_HELD:  # not in `except`: the error holds on to what did not fit
        free_memory(device, thoroughly=True)
    return trouble


def wait(device: torch.device) -> None:
    """A GPU answers before it has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratio(name: str, faster: Iterable[float], slower: Iterable[float]) -> Row | None:
    """How many times as fast the first is as the second, turn by turn: the median and the range."""
    turns = [theirs / ours for ours, theirs in zip(faster, slower, strict=False)]
    if len(turns) < FEWEST_TURNS:
        return None
    return {"name": name, "ratio": statistics.median(turns), "low": min(turns), "high": max(turns)}
