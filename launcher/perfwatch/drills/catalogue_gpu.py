"""The drills that train on a GPU: each fault of GPU work beside its look-alikes.

A fault has the name of its cause, with a suffix for a further way to cause it. A look-alike has the name of its file, and its
strengths are sizes.
"""

from perfwatch.drills.drill import STRENGTHS, Culprit, Drill


def _fault(
    name: str,
    program: str,
    summary: str,
    state: str = "slow",
    also: tuple[str, ...] = (),
    lookalike_of: str | None = None,
    strengths: tuple[str, ...] = STRENGTHS,
    culprit: Culprit | None = None,
) -> Drill:
    """Describe a run with a fault; its cause is the part of ``name`` before a hyphen, ``also`` are right as well."""
    causes = (name.split("-")[0], *also)
    return Drill(name, f"{program}.py", summary, state, causes, lookalike_of, strengths, 1, ("gpu",), culprit)


def _alike(
    program: str,
    lookalike_of: str,
    summary: str,
    state: str = "healthy",
    causes: tuple[str, ...] = ("gpu_bound",),
    strengths: tuple[str, ...] = STRENGTHS,
) -> Drill:
    """Describe a program that is not what it looks like."""
    return Drill(program, f"{program}.py", summary, state, causes, lookalike_of, strengths, 1, ("gpu",))


_HUNG: tuple[Drill, ...] = (
    _fault("stuck_kernel", "stuck_kernel", "a Newton iteration that never converges", "hung"),
    _fault("stuck_kernel-barrier", "stuck_kernel_barrier", "blocks wait for one that was never launched", "hung"),
    _fault("stuck_kernel-backward", "stuck_kernel_backward", "autograd's own thread waits for the kernel", "hung"),
    _fault("stuck_kernel-asleep", "stuck_kernel_asleep", "the training thread waits for it asleep", "hung"),
    _alike(
        "long_kernels", "stuck_kernel", "kernels of many seconds, on all of the card", causes=("gpu_bound", "balanced")
    ),
    _alike(
        "long_narrow_kernels",
        "stuck_kernel",
        "kernels of many seconds that one block works on",
        "slow",
        ("underfilled_gpu",),
    ),
)

_HOST: tuple[Drill, ...] = (
    _fault("host_bound_python", "host_bound_python", "a great many tiny kernels, launched one by one from Python"),
    _alike("large_layers", "host_bound_python", "as many kernels, each with plenty to do"),
    _fault("synchronising", "synchronising", "each layer is checked for bad numbers on the host"),
    _fault(
        "synchronising-decoder",
        "synchronising_decoder",
        "a decoder whose gradients are looked at one by one",
        also=("host_bound_python",),  # so small a model never gets ahead of its launches: both hold it back
    ),
    _alike("logged_each_step", "synchronising", "the loss is read in each step, which is a long one"),
    _fault("copy_bound", "copy_bound", "large frames are copied from pageable memory in each step"),
    _alike("pinned_copies", "copy_bound", "as many frames, copied ahead from pinned memory"),
    _fault(
        "starved_by_transforms-gpu",
        "gpu_starved_by_transforms",
        "the GPU waits for workers that tokenise in Python",
        culprit=Culprit("worker", "encode"),
    ),
    _fault(
        "starved_by_network-gpu",
        "gpu_starved_by_network",
        "the GPU waits for workers that fetch from a slow store",
        culprit=Culprit("worker", "download"),
    ),
    _fault(
        "starved_by_storage-gpu",
        "gpu_starved_by_storage",
        "the GPU waits for workers that read a file which is not cached",
        culprit=Culprit("worker", "cold_read"),
    ),
    _fault(
        "starved_by_transforms-awaited",
        "awaited_lines",
        "the GPU waits for the loader for 60 % of its idle time, and at .item() for 40 %",
        also=("synchronising",),
        strengths=(),
    ),
    _alike("gpu_fed", "starved_by_transforms", "the workers tokenise all the time, and keep up"),
    _fault(
        "host_bound_python-batch",
        "decoder_batch_one",
        "a decoder with one short sequence in each step",
        also=("underfilled_gpu",),
    ),
)

_CARD: tuple[Drill, ...] = (
    _fault("wrong_precision", "wrong_precision", "a decoder in fp32 with TF32 off"),
    _alike("tf32_training", "wrong_precision", "the same in TF32"),
    _alike("embedding_fp32", "wrong_precision", "an optimizer over a huge table", "slow", ("memory_bound_gpu",)),
    _fault("memory_bound_gpu", "memory_bound_gpu", "large tensors are written out after each small operation"),
    _alike("counted_products", "memory_bound_gpu", "large matrix products that count their own FLOPs"),
    _fault("underfilled_gpu", "underfilled_gpu", "one short sequence at a time, replayed as a CUDA graph"),
    _alike("filled_gpu", "underfilled_gpu", "the same graph with a batch that fills the card"),
    _fault("allocator_thrash", "allocator_thrash", "the cache of GPU memory is emptied in each step"),
    _fault("allocator_thrash-full", "allocator_thrash_full", "ever new sizes at the edge of the memory allowed"),
    _alike("varied_batches", "allocator_thrash", "ever new sizes with room enough"),
    _fault("shared_gpu", "shared_gpu", "another user's process computes on the same GPU"),
    _alike("idle_neighbour", "shared_gpu", "another user's process holds GPU memory and does nothing"),
    _fault(
        "slow_attention_fallback",
        "slow_attention_fallback",
        "attention writes out every pair of positions",
        also=("memory_bound_gpu",),
    ),
    _alike("long_sequences", "slow_attention_fallback", "as long sequences through the fused kernels"),
    _alike("gpu_bound", "underfilled_gpu", "a small decoder in bf16, with a batch that fills the GPU"),
)

_OTHER: tuple[Drill, ...] = (
    _fault("autotuning", "autotuning", "Triton tries many ways to run a kernel", "busy", (), "stuck_kernel", ()),
    _alike("benchmarked_once", "autotuning", "cuDNN tries its convolutions once, then training continues"),
    _fault("out_of_memory-gpu", "gpu_out_of_memory", "a tensor larger than the GPU's memory", "gone", strengths=()),
    _alike("halved_batch", "out_of_memory", "one batch is refused, and smaller ones continue", strengths=()),
    _alike("gpu_assertion", "gpu_fault", "an assertion in a kernel ends the program", "gone", ("crashed",), ()),
)

GPU_DRILLS: tuple[Drill, ...] = _HUNG + _HOST + _CARD + _OTHER
