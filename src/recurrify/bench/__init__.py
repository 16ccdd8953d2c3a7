"""Speed and memory, side by side with what one would use instead."""

from recurrify.bench.bench import WAYS
from recurrify.bench.models import KINDS, USUAL_KINDS
from recurrify.bench.running import PARTS, Asked, Outcome, run_bench
from recurrify.bench.sizes import SIZES

__all__ = ["KINDS", "PARTS", "SIZES", "USUAL_KINDS", "WAYS", "Asked", "Outcome", "run_bench"]
