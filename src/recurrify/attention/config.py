"""Which heads carry a recurrence encoding matrix (REM), of which kind, and with which parameters."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from recurrify.errors import UserError

Kind = Literal["regular", "cosine", "sine"]
Sharing = Literal["pair", "none"]

# The order of `RSAConfig.counts`, which is also the order of the heads.
KINDS: tuple[Kind, ...] = ("regular", "cosine", "sine")


class HeadPlan(NamedTuple):
    """One head with a REM."""

    kind: Kind
    dilation: int
    parameter: int
    """Its entry in η for a regular head, its entry in ν and θ for a cosine or sine head."""


@dataclass(frozen=True, kw_only=True)
class RSAConfig:
    """Self-attention with recurrence for one attention layer."""

    heads: int
    """Attention heads of the layer; the first `sum(counts)` of them carry a REM, the others stay plain softmax."""
    counts: tuple[int, int, int, int, int, int]
    """Heads of each kind: regular, cosine, sine, then dilated regular, dilated cosine, dilated sine."""
    dilations: tuple[int, ...] = ()
    """One dilation for each dilated head, in the order of those heads."""
    sharing: Sharing = "pair"
    """`pair`: the i-th cosine and the i-th sine head share one (ν, θ), as one complex eigenvalue does; or `none`."""
    truncation: int | None = None
    """The largest distance with a weight; farther positions weigh 0. None: no limit."""
    gate_start: float | None = None
    """The first value of the gate's logit μ; None draws it from U(−3, 3). Use −3 inside a pretrained model."""

    def __post_init__(self) -> None:
        # A configuration read back from JSON brings lists, which are neither equal to tuples nor hashable.
        object.__setattr__(self, "counts", tuple(self.counts))
        object.__setattr__(self, "dilations", tuple(self.dilations))
        self._check_finite()
        self._check_counts()
        self._check_dilations()
        if self.sharing not in ("pair", "none"):
            raise UserError(f"`sharing` must be 'pair' or 'none': got {self.sharing!r}.")
        _, cosine, sine, _, dilated_cosine, dilated_sine = self.counts
        if self.sharing == "pair" and (cosine, dilated_cosine) != (sine, dilated_sine):
            raise UserError(
                f"`sharing='pair'` needs as many sine as cosine heads, plain and dilated: got counts={self.counts}; "
                "even them out, or use sharing='none'."
            )
        if self.truncation is not None and self.truncation < 1:
            raise UserError(f"`truncation` must be at least 1, or None for no limit: got {self.truncation}.")

    def _check_finite(self) -> None:
        for name in ("heads", "counts", "dilations", "truncation", "gate_start"):
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(number is not None and not math.isfinite(number) for number in numbers):
                raise UserError(f"`{name}` must be finite: got {value}.")

    def _check_counts(self) -> None:
        if len(self.counts) != 6 or min(self.counts) < 0:
            raise UserError(
                "`counts` must be six numbers of heads, none negative (regular, cosine, sine, and the three dilated): "
                f"got {self.counts}."
            )
        if not 1 <= self.rem_heads <= self.heads:
            raise UserError(
                f"`counts` must name at least one head and no more than `heads`: "
                f"got counts={self.counts} (sum {self.rem_heads}), heads={self.heads}."
            )

    def _check_dilations(self) -> None:
        dilated_heads = sum(self.counts[3:])
        if len(self.dilations) != dilated_heads:
            raise UserError(
                f"`dilations` must hold one number for each of the {dilated_heads} dilated heads: got {self.dilations}."
            )
        if any(dilation < 1 for dilation in self.dilations):
            raise UserError(f"`dilations` must be at least 1: got {self.dilations}.")

    @property
    def rem_heads(self) -> int:
        """How many heads carry a REM."""
        return sum(self.counts)

    def plan(self) -> tuple[HeadPlan, ...]:
        """Kind, dilation and parameter index of each head with a REM, in the order of the heads."""
        used = {"real": 0, "complex": 0}
        waiting_dilations = iter(self.dilations)
        heads = []
        for dilated in (False, True):
            regular, cosine, sine = self.counts[3:] if dilated else self.counts[:3]
            first_cosine = used["complex"]
            first_sine = first_cosine if self.sharing == "pair" else first_cosine + cosine
            starts = (used["real"], first_cosine, first_sine)
            for kind, count, start in zip(KINDS, (regular, cosine, sine), starts, strict=True):
                for offset in range(count):
                    dilation = next(waiting_dilations) if dilated else 1
                    heads.append(HeadPlan(kind, dilation, start + offset))
            used["real"] += regular
            used["complex"] = first_sine + sine
        return tuple(heads)
