"""The family of a GPU kernel, from its name alone: a table of patterns, read from the top; the first match counts.

Names come from torch, cuBLAS (nvjet, xmma, cutlass), cuDNN, Triton, FlashAttention, Transformer Engine and NCCL, as
Kineto (``(anonymous namespace)``), nsys (``<unnamed>``) and ncu (namespaces cut off) spell them; the table looks for
what all three keep. One regular expression per family keeps a hostile name cheap: no nested repetition in any of them.
"""

import re
from typing import Literal, get_args

Family = Literal["gemm", "attention", "norm", "elementwise", "reduce", "copy", "collective", "optimizer", "other"]
FAMILIES: tuple[Family, ...] = get_args(Family)

LONGEST_NAME = 4096  # of a kernel; templates nest deeply, and what matters stands at the front

# Order matters: an AllReduce is no reduction, a LayerNorm that Triton fused is no reduction, and a copy that torch runs
# as ``elementwise_kernel<..., direct_copy_kernel_cuda>`` moves bytes and computes nothing.
_TABLE: tuple[tuple[Family, str], ...] = (
    ("collective", r"nccl|nvshmem|one_?shot_all_?reduce|two_?shot_all_?reduce|multimem_|cross_device_reduce"),
    ("attention", r"sdpa|flash_(?:fwd|bwd|attn)|flash::|fmha|attention|attn|dot_do_o|convert_dq"),
    (
        "optimizer",
        r"multi_tensor|fused_?adam|fused_?lamb|fused_?sgd|adamw?_(?:kernel|cuda)|amp_non_finite|lamb_|_adamw?_",
    ),
    (
        "gemm",
        r"nvjet|gemm|gemv|cutlass|xmma|wgrad|dgrad|triton_tem_|convolve|conv[123]d|conv_|implicit_|winograd|matmul"
        r"|cublas|splitkreduce|splitk_reduce|dot_kernel",
    ),
    (
        "norm",
        r"layer_?norm|rms_?norm|group_?norm|batch_?norm|instance_?norm|gammabeta|rowwisemoments|computeinternalgrad"
        r"|\bln_(?:fwd|bwd)|\bbn_(?:fw|bw)|triton_\w*rsqrt",
    ),
    (
        "copy",
        r"^\[?(?:cuda )?mem(?:cpy|set)|direct_copy_kernel|float(?:16|8\w*)_copy_kernel|catarraybatchedcopy|transpose"
        r"|copy_kernel|copydevice|nchwtonhwc|nhwctonchw|triton_poi_fused_(?:_to_copy|clone|cat)_\d+$",
    ),
    ("reduce", r"reduce_kernel|softmax|nll_loss|cross_entropy|cunn_|triton_(?:red|per)_|devicereduce|argm(?:ax|in)"),
    ("elementwise", r"elementwise|triton_poi_|fillfunctor|pointwise|gelu|silu|relu|dropout|rotary"),
)
_PATTERNS = tuple((family, re.compile(pattern, re.IGNORECASE)) for family, pattern in _TABLE)


def family(name: str) -> Family:
    """The family of a kernel (or of a copy or fill, which the tracers list beside kernels); ``other`` if no row fits."""
    name = name[:LONGEST_NAME]
    return next((one for one, pattern in _PATTERNS if pattern.search(name)), "other")


_TEMPLATE = re.compile(r"[<(]")
_MEANING = re.compile(  # what torch's loops apply: the functor says what the kernel does, the loop says nothing
    r"(?:native::|^|[ <(,:])([A-Za-z_]\w*(?:Functor\w*|_kernel_cuda|KernelImpl|_functor|Op(?=<)))"
)
_LOOPS = ("elementwise_kernel", "vectorized_elementwise_kernel", "unrolled_elementwise_kernel", "reduce_kernel")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>")
_LOOP_OF_TENSORS = "multi_tensor_apply_kernel"
LONGEST_SHORT_NAME = 72


def short_name(name: str) -> str:
    """A name that fits into a table: without namespaces, arguments and templates, but with what a generic loop applies.

    ``void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(...)...>`` becomes
    ``vectorized_elementwise_kernel<bfloat16_copy_kernel_cuda>``; two kernels may share one short name.
    """
    plain = _ANONYMOUS.sub("", name[:LONGEST_NAME]).strip()
    plain = plain.removeprefix("void ").strip()
    head = _TEMPLATE.split(plain, maxsplit=1)[0].rpartition("::")[2] or plain
    if head.endswith(_LOOPS) or head == _LOOP_OF_TENSORS:
        rest = plain[plain.find(head) + len(head) :]
        applied = [one for one in _MEANING.findall(rest) if one not in ("ReduceOp", "TensorIterator")]
        if applied:
            head = f"{head}<{applied[0]}>"
    return head if len(head) <= LONGEST_SHORT_NAME else head[: LONGEST_SHORT_NAME - 3] + "..."
