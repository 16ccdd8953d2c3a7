"""Where the time of a training step goes, and how kernels are told apart."""

from dataclasses import replace

import pytest
from mini_bench import MINI, mini_bench

from recurrify_papers.bench import profiling
from recurrify_papers.bench.profiling import covers_profile, kind_of, measure_profile
from recurrify_papers.bench.timing import NO_TIME


class TestProfile:
    def test_all_the_time_of_a_step_is_somewhere(self) -> None:
        result = measure_profile(mini_bench())
        assert [(row["kind"], row["way"]) for row in result["rows"]] == [
            *(("transformers", "eager"), ("plain", "eager"), ("carry", "eager")),
        ]
        for row in result["rows"]:
            work = {one["what"]: one for one in row["work"]}
            assert {"matrix products", "matrix products of the head", "attention", "loss", "optimiser"} <= set(work)
            assert all(one["seconds"] > 0 for one in work.values())
            assert row["tokens"] == 2 * 3 * 8

    def test_what_was_profiled_stands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            profiling, "_row", lambda bench, one, way, batch: {"kind": one.kind, "way": way, "trouble": None}
        )
        bench = mini_bench()
        first = measure_profile(bench)
        rows = first["rows"]
        assert not covers_profile({**first, "finished": False}, bench)
        assert covers_profile({**first, "finished": True}, bench)
        assert not covers_profile({**first, "finished": True}, mini_bench(ways=("eager", "compiled")))
        assert not covers_profile({**first, "finished": True}, mini_bench(batches=(1,)))
        # On a CPU there are no graphs to wait for.
        assert covers_profile({**first, "finished": True}, mini_bench(ways=("eager", "graphs")))
        more = measure_profile(mini_bench(ways=("compiled",)), first)["rows"]
        assert [row["way"] for row in more] == 3 * ["eager", "compiled"]
        rows[1] = {**rows[1], "trouble": NO_TIME}
        again = measure_profile(bench, first)["rows"]
        assert again[0] is rows[0]
        assert again[2] is rows[2]
        assert again[1]["trouble"] is None
        assert measure_profile(mini_bench(batches=(1,)), first)["rows"][0] is not rows[0]

    def test_the_products_of_the_head_are_told_by_their_sizes(self) -> None:
        """A window's logits and their two gradients, and no other product."""
        row = measure_profile(mini_bench(batches=(1,)))["rows"][1]
        head = next(one for one in row["work"] if one["what"] == "matrix products of the head")
        assert head["calls"] == 3  # the logits of three small windows are made at once

    def test_no_batch_has_the_size_of_the_vocabulary(self) -> None:
        assert measure_profile(mini_bench(replace(MINI, vocabulary=16), batches=(2,)))["batch"] == 1

    def test_regions_are_no_kernels(self) -> None:
        assert not profiling.is_kernel("## Call CompiledFxGraph f5w7adairendyohal63b ##")
        assert not profiling.is_kernel("Optimizer.step#AdamW.step")
        assert profiling.is_kernel("triton_red_fused_native_layer_norm_3")
        assert profiling.is_kernel("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>")

    def test_kinds_are_told_by_name(self) -> None:
        names = {
            "nvjet_sm90_tst_128x128_64x6_1x2_h_bz_splitK_NTT": "matrix products",
            "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<cutlass::bfloat16_t>": "attention",
            "fmha_cutlassB_bf16_aligned_64x64_k64_sm80": "attention",
            "triton_red_fused__log_softmax__to_copy_nll_loss_forward_0": "loss",
            "triton_per_fused_add_native_layer_norm_1": "norms, activations, sums",
            "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimiser",
            "Memcpy DtoD (Device -> Device)": "copies and casts",
            "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>": "copies and casts",
            "void something_new": "everything else",
        }
        assert {name: kind_of(name) for name in names} == names
