"""Every mechanism meets the contract of `recurrify.testing`, and the contract catches what breaks it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from recurrify import MechanismConfig, NoRecurrence, UserError
from recurrify.mechanisms import Past, Recorder, SlotMechanism, mechanism_config, mechanism_names, recurrence_config
from recurrify.testing import check_mechanism
from support.checks import READ, VARIANTS, config


@pytest.mark.parametrize("name", [name for name in mechanism_names() if mechanism_config(name) is not NoRecurrence])
def test_every_registered_mechanism_meets_the_contract(name: str) -> None:
    check_mechanism(recurrence_config({"mechanism": name, "window": 20, "overlap": 4}))


@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_meet_the_contract(variant: str) -> None:
    checks = ("memory", "calls", "batches", "generate") if variant in READ else ("memory",)
    check_mechanism(config(**VARIANTS[variant]), checks)


@dataclass(frozen=True, kw_only=True)
class ToyConfig(MechanismConfig):
    """The hidden state of one position, mapped, is an extra input of the second layer."""

    mechanism: ClassVar[str] = "toy"
    fault: str = ""

    def build(self, layers: int, width: int) -> "Toy":
        return Toy(self, layers, width)


class Toy(SlotMechanism):
    def __init__(self, config: ToyConfig, layers: int, width: int) -> None:
        super().__init__(config)
        self.map = nn.Linear(width, width)
        if config.fault == "unused parameter":
            self.unused = nn.Parameter(torch.zeros(3))

    def resize(self, config: ToyConfig) -> None:
        if self.config.fault != "old stride":
            super().resize(config)

    def slots(self) -> dict[int, int]:
        return {1: 1 + (self.config.fault == "too many slots")}

    def state_size(self) -> int:
        return self.map.out_features + (self.config.fault == "state size")

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        if self.config.fault == "on the CPU":
            memory = memory * torch.ones(len(memory), 1, 1)
        return {1: torch.zeros_like(memory) if self.config.fault == "not read" else memory}

    def recorder(self, stride: int) -> "OnePosition":
        return OnePosition(-1 if self.config.fault == "last position" else self.config.stride - 1)

    def write(self, recorder: "OnePosition", past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        hidden = recorder.hidden
        if self.config.fault == "detached":
            hidden = hidden.detach()
        if self.config.fault == "mixes rows" or (self.config.fault == "mixes rows in training" and self.training):
            hidden = hidden - hidden.mean(0)
        if self.config.fault != "no cast":
            hidden = hidden.to(self.map.weight.dtype)
        if self.config.fault == "raises":
            raise UserError("Not today.")
        written: Tensor = self.map(hidden)
        if self.config.fault == "detached gate":
            written = written + 0.5 * past.otherwise(torch.zeros_like(written)).detach()
        if self.config.fault == "infinite gradient":
            written = written + (self.map.weight - self.map.weight).sum().sqrt()
        return written


class OnePosition(Recorder):
    def __init__(self, place: int) -> None:
        self.place = place
        self.hidden: Any = None

    def see(self, layer: int, hidden: Tensor) -> None:
        self.hidden = hidden[:, self.place, None]


def test_correct_toy_passes() -> None:
    check_mechanism(ToyConfig(window=8, overlap=2))


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        ("last position", "overlap", "the next window sees again"),
        ("no cast", "dtypes", "float32 on bfloat16: .*dtype.*cast what you record"),
        ("state size", "memory", r"state_size\(\) is not the memory's size, 16"),
        ("not read", "memory", "does not depend on the memory"),
        ("too many slots", "memory", r"slots\(\) says 2 for layer 1, but 1 are read"),
        ("raises", "memory", "Not today"),
        ("mixes rows", "batches", "row 0 of a batch"),
        ("mixes rows in training", "batches", "row 0 of a batch padded on the left, in training"),
        ("old stride", "resize", r"after set_recurrence\(window=16\)"),
        ("on the CPU", "devices", "created without `device=`"),
        ("detached", "horizon", "no gradient goes through the memory"),
        ("detached gate", "horizon", "a part of the memory has no gradient"),
        ("infinite gradient", "gradients", "is not finite"),
        ("unused parameter", "gradients", "unused has no gradient"),
    ],
)
def test_fault_is_caught(fault: str, check: str, message: str) -> None:
    with pytest.raises(AssertionError, match=rf"ToyConfig, check '{check}': .*{message}"):
        check_mechanism(ToyConfig(window=8, overlap=2, fault=fault), [check])


def test_plain_windows_have_nothing_to_check() -> None:
    with pytest.raises(UserError, match="NoRecurrence adds no mechanism"):
        check_mechanism(NoRecurrence(window=8))
