"""The ProbSparse kernel against the plain way, on a GPU or, run as a program, in Triton's interpreter on a CPU.

TRITON_INTERPRET=1 python tests/models/prob_sparse_checks.py
"""

import torch
from torch import Tensor

from recurrify_papers.kernels.prob_sparse import outstanding_queries
from recurrify_papers.models.prob_sparse import outstanding

SIZES = [(70, 70, 64), (33, 130, 16), (5, 3, 16), (40, 40, 128)]
"""Queries and keys that fill no tile, and head widths, the last with the smaller tile for wide rows."""


def as_in_the_model(batch: int, heads: int, rows: int, width: int, device: str, dtype: torch.dtype) -> Tensor:
    """Heads lie side by side in memory, rows far apart; keys are one half of a row."""
    return torch.randn(batch, rows, 2, heads, width, device=device).to(dtype)[:, :, 0].transpose(1, 2)


def assert_kernel_is_plain(
    queries: int, keys: int, width: int, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Against float64 on the CPU: every number, and the queries that are chosen by them."""
    query = as_in_the_model(2, 3, queries, width, device, dtype)
    key = as_in_the_model(2, 3, keys, width, device, dtype)
    sample = torch.randint(keys, (queries, 12), device=device)
    sample[:, 1:4] = sample[:, :1]  # one key for certain several times
    found = outstanding_queries(query, key, sample).cpu()
    wanted = outstanding(query.double().cpu(), key.double().cpu(), sample.cpu())
    assert found.dtype == torch.float32
    worst = (found - wanted).abs().max().item()
    assert worst <= tolerance * wanted.abs().max().item(), f"{queries}, {keys}, {width}: differs by {worst}"
    count = max(1, queries // 4)
    chosen, should = (one.topk(count).indices.sort().values for one in (found, wanted.float()))
    assert torch.equal(chosen, should), f"{queries}, {keys}, {width}: other queries are chosen"


def main() -> None:
    torch.manual_seed(0)
    for queries, keys, width in SIZES:
        assert_kernel_is_plain(queries, keys, width, "cpu", torch.float32, 1e-6)
    assert_kernel_is_plain(33, 130, 16, "cpu", torch.float16, 1e-6)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
