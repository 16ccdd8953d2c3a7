"""The trained parameters of one layer's recurrence encoding matrices.

Shapes: R heads that carry a REM (the first of the layer's heads).
"""

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from recurrify.attention.config import RSAConfig


def recurrence_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Gates, decays and angles."""
    return [
        parameter
        for module in model.modules()
        if isinstance(module, RecurrenceEncoding)
        for parameter in module.parameters()
    ]


class Kernel(NamedTuple):
    """What the REMs of one layer are made of; every tensor has shape (R,).

    A head of dilation d weighs the distance ℓ by the real part of z^(ℓ/d), or a sine head by its imaginary part, where
    z = sign · decay · e^(i · angle).
    """

    sign: Tensor
    """−1 or 1."""
    decay: Tensor
    angle: Tensor
    sine: Tensor
    """True for sine heads."""
    dilation: Tensor
    dilations: tuple[int, ...]
    """The dilations again, as numbers, so that shapes never wait for the device."""
    truncation: int | None


class RecurrenceEncoding(nn.Module):
    """η for regular heads, ν and θ for cosine and sine heads, and one gate μ for the layer."""

    draws_apart: ClassVar[bool] = True
    """Whether initialisation leaves the global random generator unchanged, so that all other weights of a model are
    those of the same model without recurrence. Two encodings initialised one right after the other get equal values."""
    select: Tensor
    sine: Tensor
    dilation: Tensor

    def __init__(self, config: RSAConfig) -> None:
        super().__init__()
        self.config = config
        self.plan = config.plan()
        self.dilations = tuple(head.dilation for head in self.plan)
        eta_count = 1 + max((head.parameter for head in self.plan if head.kind == "regular"), default=-1)
        cyclical_count = 1 + max((head.parameter for head in self.plan if head.kind != "regular"), default=-1)
        self.mu = nn.Parameter(torch.empty(1))
        self.eta = nn.Parameter(torch.empty(eta_count))
        self.nu = nn.Parameter(torch.empty(cyclical_count))
        self.theta = nn.Parameter(torch.empty(cyclical_count))
        self.reset_parameters()

        # Positions of each head's parameters in the list "all of η, then all of ν (or θ)".
        select = [head.parameter if head.kind == "regular" else eta_count + head.parameter for head in self.plan]
        self.register_buffer("select", torch.tensor(select), persistent=False)
        self.register_buffer("sine", torch.tensor([head.kind == "sine" for head in self.plan]), persistent=False)
        self.register_buffer("dilation", torch.tensor(self.dilations), persistent=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """|η| and ν from U(1, 2), η with a random sign; the angles evenly over (0, π/2), so π/4 when there is one."""
        generator = _generator_apart(self.mu.device) if self.draws_apart else None
        if self.config.gate_start is None:
            self.mu.uniform_(-3, 3, generator=generator)
        else:
            self.mu.fill_(self.config.gate_start)
        random_signs = torch.empty_like(self.eta).random_(2, generator=generator) * 2 - 1
        self.eta.uniform_(1, 2, generator=generator).mul_(random_signs)
        self.nu.uniform_(1, 2, generator=generator)
        angles = len(self.theta)
        self.theta.copy_(torch.arange(1, angles + 1) * (math.pi / 2) / (angles + 1))

    @property
    def rem_heads(self) -> int:
        """How many heads carry a REM."""
        return len(self.plan)

    def gate(self) -> Tensor:
        """The share of the recurrence in the output of the heads that carry a REM."""
        return torch.sigmoid(self.mu)

    def kernel(self) -> Kernel:
        """The eigenvalue of every head, in float32 or better: powers amplify rounding errors."""
        dtype = torch.promote_types(self.eta.dtype, torch.float32)
        eta, nu, theta = self.eta.to(dtype), self.nu.to(dtype), self.theta.to(dtype)
        eta_sign = torch.where(eta < 0, -1.0, 1.0).to(dtype)
        # Times the sign instead of abs(), whose gradient is 0 at η = 0, where it should be 1.
        decay = torch.cat([torch.tanh(eta) * eta_sign, torch.sigmoid(nu)])
        return Kernel(
            sign=torch.cat([eta_sign, torch.ones_like(nu)])[self.select],
            decay=decay[self.select],
            angle=torch.cat([torch.zeros_like(eta), theta])[self.select],
            sine=self.sine,
            dilation=self.dilation,
            dilations=self.dilations,
            truncation=self.config.truncation,
        )

    def extra_repr(self) -> str:
        return f"heads={self.config.heads}, counts={self.config.counts}, dilations={self.config.dilations}"


def _generator_apart(device: torch.device) -> torch.Generator | None:
    """Seeded with the next number of the device's global generator, which stays unchanged; None on other devices."""
    if device.type not in ("cpu", "cuda"):
        return None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # A copy of the generator would repeat the numbers that the next weights are made of.
        seed = int(torch.randint(2**63 - 1, (), device=device))
    return torch.Generator(device).manual_seed(seed)
