"""Table 1 as published: sixteen settings, with the errors the authors of RSA and a student reproduction report.

Lengths and layers are those of Informer's published commands for multivariate forecasts; heads of each kind of
recurrence are those of the RSA authors, who name none for ETTm1 at 288 and weather at 336: there the next shorter
horizon's are used. Dilations were not published; ours are `default_dilations`.
"""

from typing import NamedTuple

from recurrify.errors import UserError


class Errors(NamedTuple):
    """On scaled values."""

    mse: float
    mae: float


class Reported(NamedTuple):
    """Of one setting; None where the memory of the students' GPU ran out."""

    informer: Errors | None
    rsa_informer: Errors | None


class Setting(NamedTuple):
    """One data set and horizon."""

    data: str
    """Name of the file, without .csv."""
    horizon: int
    past: int
    label: int
    encoder_layers: int
    decoder_layers: int
    factor: int
    counts: tuple[int, int, int, int, int, int]
    authors: Reported
    students: Reported

    @property
    def name(self) -> str:
        return f"{self.data}-{self.horizon}"


WAVES = (0, 2, 2, 0, 2, 2)
DILATED_WAVES = (0, 0, 0, 0, 4, 4)
DECAYS_AND_WAVES = (0, 2, 2, 2, 1, 1)
REGULAR_AND_WAVES = (4, 2, 2, 0, 0, 0)
REGULAR = (4, 0, 0, 4, 0, 0)


def _reported(informer: tuple[float, float] | None, rsa_informer: tuple[float, float] | None) -> Reported:
    return Reported(
        None if informer is None else Errors(*informer), None if rsa_informer is None else Errors(*rsa_informer)
    )


_R = _reported
SETTINGS = (
    Setting("ETTh1", 24, 48, 48, 2, 1, 3, WAVES,
            _R((0.762, 0.632), (0.414, 0.450)), _R((0.679, 0.590), (0.632, 0.568))),
    Setting("ETTh1", 48, 96, 48, 2, 1, 5, DECAYS_AND_WAVES,
            _R((1.006, 0.763), (0.467, 0.493)), _R((0.935, 0.724), (0.908, 0.714))),
    Setting("ETTh1", 168, 168, 168, 2, 1, 5, DECAYS_AND_WAVES,
            _R((1.141, 0.823), (0.753, 0.659)), _R((1.464, 1.000), (1.265, 0.886))),
    Setting("ETTh1", 336, 168, 168, 2, 1, 5, REGULAR,
            _R((1.416, 0.987), (0.895, 0.755)), _R((1.645, 1.071), (1.902, 1.158))),
    Setting("ETTh2", 24, 48, 48, 2, 1, 5, REGULAR_AND_WAVES,
            _R((2.558, 1.253), (1.264, 0.879)), _R((0.951, 0.777), (1.091, 0.840))),
    Setting("ETTh2", 48, 96, 96, 2, 1, 5, WAVES,
            _R((2.487, 1.268), (1.878, 1.067)), _R((2.584, 1.300), (1.465, 0.970))),
    Setting("ETTh2", 168, 336, 336, 3, 2, 5, REGULAR_AND_WAVES,
            _R((2.869, 1.324), (2.830, 1.301)), _R((2.534, 1.259), (3.658, 1.559))),
    Setting("ETTh2", 336, 336, 168, 3, 2, 5, WAVES,
            _R((2.055, 1.113), (2.113, 1.124)), _R((2.292, 1.195), (2.331, 1.222))),
    Setting("ETTm1", 24, 672, 96, 2, 1, 5, DILATED_WAVES,
            _R((0.536, 0.511), (0.534, 0.507)), _R((0.695, 0.6114), (0.7411, 0.643))),
    Setting("ETTm1", 48, 96, 48, 2, 1, 5, WAVES,
            _R((0.781, 0.633), (0.644, 0.612)), _R((0.782, 0.648), (0.747, 0.744))),
    Setting("ETTm1", 96, 384, 384, 2, 1, 5, WAVES,
            _R((0.823, 0.697), (0.732, 0.665)), _R((1.088, 0.817), (1.313, 0.935))),
    Setting("ETTm1", 288, 672, 288, 2, 1, 5, WAVES,
            _R((1.371, 0.945), (0.835, 0.710)), _R(None, None)),
    Setting("WTH", 24, 168, 168, 3, 2, 5, DILATED_WAVES,
            _R((0.316, 0.371), (0.328, 0.380)), _R((0.886, 0.720), (0.992, 0.765))),
    Setting("WTH", 48, 96, 96, 2, 1, 5, WAVES,
            _R((0.606, 0.566), (0.432, 0.464)), _R((0.555, 0.546), (0.490, 0.502))),
    Setting("WTH", 168, 336, 168, 3, 2, 5, WAVES,
            _R((1.009, 0.771), (0.862, 0.702)), _R((0.643, 0.598), (0.853, 0.699))),
    Setting("WTH", 336, 720, 168, 3, 2, 5, WAVES,
            _R((1.096, 0.801), (0.846, 0.697)), _R(None, None)),
)  # fmt: skip


def chosen_settings(names: list[str] | None) -> list[Setting]:
    """By name (ETTh1-24) or by data set (ETTh1); None is all sixteen."""
    if not names:
        return list(SETTINGS)
    for name in names:
        if not any(name in (setting.name, setting.data) for setting in SETTINGS):
            known = ", ".join(setting.name for setting in SETTINGS)
            raise UserError(f"There is no setting {name!r} in Table 1: it has {known}.")
    return [setting for setting in SETTINGS if setting.name in names or setting.data in names]
