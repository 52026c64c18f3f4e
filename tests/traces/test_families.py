"""Kernel families: decided by the name alone, alike for every tool that spells it."""

from pathlib import Path

import pytest

from perfwatch.traces.families import LONGEST_SHORT_NAME, family, short_name

# Every kernel of a decoder's training step on an H200 (torch 2.11), as Kineto, nsys and ncu spell it.
NAMES = [line.split("\t", 1) for line in (Path(__file__).parent / "kernel_names.txt").read_text().splitlines()]

OF_OTHERS = {
    "triton_poi_fused_add_gelu_3": "elementwise",
    "triton_poi_fused__to_copy_0": "copy",
    "triton_red_fused__log_softmax_2": "reduce",
    "triton_per_fused_native_layer_norm_1": "norm",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "norm",
    "triton_tem_fused_mm_4": "gemm",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64, 128> >(Flash_fwd_params)": "attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)": "attention",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_kernel__5x_cublas": "gemm",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(T1::Params)": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(cublasSplitKParams<float>)": "gemm",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct)": "norm",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>": "copy",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float, float, int>, float>": "optimizer",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "collective",
    "[CUDA memcpy Host-to-Device]": "copy",
    "Memcpy HtoD (Pageable -> Device)": "copy",
    "Memset (Device)": "copy",
    "my_own_kernel": "other",
    "": "other",
}


@pytest.mark.parametrize(("expected", "name"), NAMES, ids=lambda text: text[:40])
def test_a_kernel_of_a_real_step_has_its_family(expected: str, name: str) -> None:
    """Whoever traced it."""
    assert family(name) == expected


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_kernel_of_another_library_has_its_family(name: str) -> None:
    """Triton, FlashAttention, cutlass, cuDNN, apex, older NCCL; what nobody knows is "other"."""
    assert family(name) == OF_OTHERS[name]


def test_a_short_name_says_what_a_generic_loop_applies() -> None:
    """``elementwise_kernel`` alone would say nothing."""
    names = {short_name(name) for _, name in NAMES}

    assert "vectorized_elementwise_kernel<bfloat16_copy_kernel_cuda>" in names
    assert "multi_tensor_apply_kernel<PointwiseOpScalarFunctor>" in names
    assert "reduce_kernel<sum_functor>" in names
    assert "ncclDevKernel_AllReduce_Sum_f32_RING_LL" in names
    assert all(len(name) <= LONGEST_SHORT_NAME for name in names)


def test_a_hostile_name_costs_no_time() -> None:
    """A megabyte of nested templates is cut before anything is matched."""
    hostile = "void at::native::elementwise_kernel" + "<(" * 500_000

    assert family(hostile) == "elementwise"
    assert short_name(hostile) == "elementwise_kernel"
