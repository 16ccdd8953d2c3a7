"""Speed and memory, side by side with what one would use instead."""

from recurrify_papers.bench.bench import WAYS
from recurrify_papers.bench.models import KINDS, USUAL_KINDS
from recurrify_papers.bench.running import PARTS, Asked, Outcome, run_bench
from recurrify_papers.bench.sizes import SIZES

__all__ = ["KINDS", "PARTS", "SIZES", "USUAL_KINDS", "WAYS", "Asked", "Outcome", "run_bench"]
