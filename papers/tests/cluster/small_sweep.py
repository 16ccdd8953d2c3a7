"""`recurrify` with one more size, `cluster`: a base of next to nothing, three fine-tunings and their scores.

python small_sweep.py experiment run learning-rates --size cluster --books TEXTS --wiki TEXTS
"""

from dataclasses import replace

from recurrify.cli.main import main
from recurrify_papers.sizes import SIZES, TINY, tail

EVERY = 4_000
SIZES["cluster"] = replace(
    TINY,
    name="cluster",
    purpose="minutes on one core",
    base=None,
    pretraining={
        "vocabulary": 300,
        "layers": 3,
        "width": 16,
        "heads": 2,
        "positions": 64,
        "batch": 2,
        "learning_rate": 2e-3,
        "warmup_steps": 10,
        "max_tokens": 10 * EVERY,
        "valid_every": EVERY,
    },
    window=32,
    training={
        "batch": 2,
        "windows": 3,
        "max_tokens": 10 * EVERY,
        "epochs": 100.0,
        "valid_every": EVERY,
        "valid_tokens": 300,
        "patience": 0,
        "warmup_steps": 5,
    },
    wiki_training={},
    tuning_tokens=None,
    rates=(1e-3,),
    best=tail(4),
)
if __name__ == "__main__":
    main()
