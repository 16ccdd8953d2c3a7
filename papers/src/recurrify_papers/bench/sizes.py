"""How large the models and the texts of a benchmark are: a few named sizes, one of which fits the machine."""

from dataclasses import dataclass, replace

import torch

from recurrify.errors import UserError

ENOUGH_FOR_GPT2 = 40 * 2**30
"""Bytes of a GPU that runs most of the largest size."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The same models and texts for everybody who is measured."""

    name: str
    purpose: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    positions: int
    """The context of transformers' own model."""
    window: int
    windows: int
    """In a training sequence."""
    batches: tuple[int, ...]
    """Sequences in an update, from few to many: what few take says how many fit at once."""
    windows_at_once: int
    """The most windows that transformers' own model takes as rows of one batch: their logits exist all at once."""
    tail: int
    keep: int
    """Positions of the window before at which `lookback` looks."""
    lengths: tuple[int, ...]
    """Windows of single sequences, for memory and speed against length."""
    prompts: tuple[int, ...]
    """Tokens read before generation is timed."""
    documents: int
    document_tokens: int
    rounds: int
    """Interleaved repeats, of which medians are taken."""
    matrices: tuple[int, ...]
    """Sides of the square matrices of the measured ceiling."""
    copied_bytes: int


TINY = Size(
    name="tiny",
    purpose="the demo's shape: minutes on two cores",
    vocabulary=1024,
    width=96,
    layers=4,
    heads=4,
    positions=256,
    window=64,
    windows=8,
    batches=(1, 4, 16),
    windows_at_once=64,
    tail=16,
    keep=32,
    lengths=(4, 16, 64),
    prompts=(1, 128, 1_000, 4_000),
    documents=16,
    document_tokens=2_000,
    rounds=5,
    matrices=(512, 1024, 2048),
    copied_bytes=2**28,
)
SMALL = Size(
    name="small",
    purpose="25 M parameters: a smaller GPU",
    vocabulary=16_384,
    width=512,
    layers=8,
    heads=8,
    positions=1024,
    window=300,
    windows=20,
    batches=(1, 16, 64),
    windows_at_once=64,
    tail=64,
    keep=256,
    lengths=(5, 20, 80, 320),
    prompts=(1, 600, 10_000, 100_000),
    documents=26,
    document_tokens=30_000,
    rounds=3,
    matrices=(2048, 4096, 8192),
    copied_bytes=2**30,
)
GPT2 = replace(
    SMALL,
    name="gpt2",
    purpose="GPT-2 small, windows of 300, as in the paper: one large GPU",
    vocabulary=50_257,
    width=768,
    layers=12,
    heads=12,
    matrices=(4096, 8192, 16_384),
    copied_bytes=2**31,
)
SIZES = {size.name: size for size in (TINY, SMALL, GPT2)}
AUTO = "auto"


def size_for(name: str, device: torch.device) -> Size:
    """The size of this name, or the one that fits the device."""
    if name == AUTO:
        return SIZES[_fitting(device)]
    if name not in SIZES:
        raise UserError(f"There is no size {name!r}: there are {AUTO}, {', '.join(SIZES)}.")
    return SIZES[name]


def _fitting(device: torch.device) -> str:
    if device.type != "cuda":
        return "tiny"
    memory = torch.cuda.get_device_properties(device).total_memory
    return "gpt2" if memory >= ENOUGH_FOR_GPT2 else "small"
