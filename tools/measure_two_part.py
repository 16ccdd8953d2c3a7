"""The two-part task: what a label means stands in an early window, the evidence for it in a late one.

    python tools/measure_two_part.py --seeds 3 --out results/two_part.json

A small decoder is trained from scratch without and with a memory, alike in everything else. Without one it cannot be
better than chance. A few minutes on two cores.
"""

import argparse
import time
from pathlib import Path

from recurrify.results import provenance, save_result
from recurrify_papers.two_part.run import two_part_experiment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--out", type=Path, default=Path("results/two_part.json"))
    arguments = parser.parse_args()
    started = time.time()
    rows = []
    for seed in range(arguments.seeds):
        rows.append(
            two_part_experiment(
                lambda line, seed=seed: print(f"seed {seed}, {line}", flush=True), seed, arguments.steps
            )
        )
    for name in ("disjoint", "recurrent", "recurrent_as_for_answers"):
        found = [row[name]["accuracy"] for row in rows]
        print(f"{name}: accuracy {min(found):.3f} to {max(found):.3f} over {len(found)} seeds")
    config = {"seeds": arguments.seeds, "steps": arguments.steps}
    save_result(
        arguments.out, {"kind": "two-part-seeds", "rows": rows, "provenance": provenance(config, started=started)}
    )


if __name__ == "__main__":
    main()
