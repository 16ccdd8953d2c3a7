"""What was published on enwik8 and text8, in bits per character, each number with its source."""

from collections.abc import Mapping
from typing import Any, NamedTuple

REPRODUCTION = "COMP6258 Reproducibility Challenge, Encoding Recurrence into Transformers (Coulson et al.), Table 2"
RSA_PAPER = "Encoding Recurrence into Transformers (Huang et al., 2023)"
XL_PAPER = "Transformer-XL (Dai et al., 2019)"
SHORT = {REPRODUCTION: "reproduction, Table 2", RSA_PAPER: "RSA paper", XL_PAPER: "Transformer-XL paper"}
"""The sources as a table has room for them."""
SYMBOLS = "bytes-without-newlines"
"""How Transformer-XL's code, and whoever builds on it, reads enwik8."""
CORPORA = ("enwik8", "text8")
UNITS = {"enwik8": "byte", "text8": "character"}
"""What papers count, and call a character, on each."""


class Published(NamedTuple):
    model: str
    source: str
    enwik8: float | None
    text8: float | None
    steps: str
    """How long it was trained, as the source says."""
    arch: str | None = None
    """The architecture here that it stands beside."""
    shape: Mapping[str, int] = {}
    """What that one has to look like."""

    def bits(self, corpus: str) -> float | None:
        value: float | None = getattr(self, corpus, None)
        return value


LEARNING_RATE = 2.5e-4
"""All models of the reproduction have it."""
_DILATIONS = {"enwik8": [3, 6, 9, 12], "text8": [6, 6, 12, 12]}
_FULL = {"layers": 14, "width": 512}
_SMALLEST = {"layers": 7, "width": 8, "head_width": 8, "inner": 32, "memory_length": 32}
PUBLISHED = (
    Published("Transformer-XL", REPRODUCTION, 1.26, 1.28, "20,000", "xl", _FULL),
    Published("RSA-XL", REPRODUCTION, 5.07, 4.10, "10,000", "rsa-xl", _FULL),
    # The text has a width of 8; the script that it names for enwik8 has 256, others have 8 and are small in all else.
    Published("RSA-XL-Small", REPRODUCTION, 3.93, 3.19, "20,000", "rsa-xl", {"layers": 7, "width": 256}),
    Published("RSA-XL-Small", REPRODUCTION, 3.93, 3.19, "20,000", "rsa-xl", _SMALLEST),
    Published("Block-Recurrent", REPRODUCTION, 1.29, 1.30, "10 % of 400,000", "brt", {"layers": 14}),
    Published("Transformer-XL, 12 layers", XL_PAPER, 1.06, None, "400,000"),
    Published("Transformer-XL", XL_PAPER, None, 1.08, "400,000"),
    Published("Block-Recurrent", RSA_PAPER, 1.0746, 1.1652, "400,000"),
    Published("RSA-BRT", RSA_PAPER, 1.0683, 1.1625, "400,000"),
)


def published_for(arch: str, shape: Mapping[str, Any], corpus: str) -> Published | None:
    """What stands beside a model of ours; None where nothing of its kind and size was published on this corpus."""
    for entry in PUBLISHED:
        fits = entry.arch == arch and all(shape.get(name) == size for name, size in entry.shape.items())
        if fits and entry.bits(corpus) is not None:
            return entry
    return None


def has_published_settings(config: Mapping[str, Any], corpus: str) -> bool:
    """Whether a run of a published shape was trained as that one, too: a variant that nobody published, in its
    recurrence or its rates, has no number to stand beside."""
    known = {"rsa.counts": [0, 0, 0, 0, 2, 2], "rsa.dilations": _DILATIONS.get(corpus)}
    settings = config.get("settings")
    own = settings.items() if isinstance(settings, Mapping) else ()
    return (
        config.get("recurrence_learning_rate") is None
        and config.get("learning_rate") in (None, LEARNING_RATE)
        and all(value is None or value == known.get(name) for name, value in own if name.startswith("rsa."))
    )


def published_on(corpus: str) -> list[Published]:
    """Everything on a corpus, each number once."""
    return list({(one.model, one.source): one for one in PUBLISHED if one.bits(corpus) is not None}.values())
