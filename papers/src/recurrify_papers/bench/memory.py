"""The most memory that a piece of work takes, on a GPU and, where Linux tells it, on a CPU."""

import ctypes
import gc
import sys
from pathlib import Path

import torch

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
RESET_PEAK = "5"
LEAST_TOLD = 32 * 2**20
"""Of resident memory: less may come out of what the C library has kept from before."""


class PeakMemory:
    """Bytes beyond what was in use when it was made.

    What CUDA graphs hold is reserved and not counted as allocated: with `reserved`, all that is reserved counts.
    """

    def __init__(self, device: torch.device, reserved: bool = False) -> None:
        self.device, self.reserved = device, reserved
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self.before: int | None = (
                torch.cuda.memory_reserved(device) if reserved else torch.cuda.memory_allocated(device)
            )
        else:
            free_memory(device)
            self.before = _resident("VmRSS") if _reset_peak() else None

    def so_far(self) -> int | None:
        """None where nobody counts, or too little to be told."""
        if self.before is None:
            return None
        if self.device.type != "cuda":
            peak = _resident("VmHWM")
            return peak - self.before if peak is not None and peak - self.before >= LEAST_TOLD else None
        if self.reserved:
            peak = torch.cuda.max_memory_reserved(self.device)
        else:
            peak = torch.cuda.max_memory_allocated(self.device)
        return max(peak - self.before, 0)


def free_memory(device: torch.device, thoroughly: bool = False) -> None:
    """Give back what nobody holds; `thoroughly`, which takes a while, also what only holds on to itself."""
    if thoroughly:
        gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        _give_back()


def _give_back() -> None:
    """Hand freed memory to the system, where the C library can: what it keeps would look like memory in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _reset_peak() -> bool:
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _resident(field: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) * 1024 if found else None
