"""The levers: one row each.

``judge`` looks for the row's evidence in the steps of a run, and says nothing where there is none or where the lever is on already.
The speed-ups that it applies to a share have their source in the row: a ratio of published peaks, who published it, what the trace
itself leaves, or the pairs of ``scripts/headroom`` (tests/RESULTS.md).
"""

from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.headroom.evidence.passes import (
    attention_mask,
    batched_generation,
    checkpointing,
    compile_,
    cuda_graphs,
    cudnn_rnn,
    flash_attention,
    kv_cache,
    micro_batch,
    padding,
    vocabulary_loss,
)
from perfwatch.headroom.evidence.products import (
    channels_last,
    cudnn_benchmark,
    cudnn_search,
    fp8,
    matrix_sizes,
    mixed_precision,
    tf32,
)
from perfwatch.headroom.evidence.updates import fused_optimizer, optimizer_on_cpu, sparse_gradients
from perfwatch.headroom.evidence.waits import (
    allocator,
    bucket_size,
    data_loading,
    fsdp_prefetch,
    no_sync,
    pageable_copies,
    synchronising_reads,
    unused_parameters,
)
from perfwatch.headroom.facts import Facts, Seen

MORE_WORKERS = "a higher num_workers, as far as cores are free"  # what a session knows more about than a trace


@dataclass(frozen=True)
class Lever:
    """One row.

    Attributes:
        name, title: what it is called in JSON; what it is, in a few words.
        change: what to write.
        cost: what it costs.
        source: of the speed-up that is applied to the share.
        excludes: levers that answer the same need, or that do not go with it.
    """

    name: str
    title: str
    change: str
    cost: str
    source: str
    judge: "Callable[[Facts], Seen | None]"
    excludes: tuple[str, ...] = ()


_MEASURED = "the pairs of scripts/headroom, measured on an H200"
LEVERS: tuple[Lever, ...] = (
    Lever(
        "mixed_precision",
        "mixed precision (bf16)",
        'wrap the forward pass and the loss in torch.autocast("cuda", torch.bfloat16)',
        "16-bit products: compare the loss over some hundred steps",
        "ratios of the data sheet's peaks",
        mixed_precision,
        ("tf32",),
    ),
    Lever(
        "tf32",
        "TF32",
        'torch.set_float32_matmul_precision("high") before the first step',
        "products keep 10 bits of mantissa",
        "ratios of the data sheet's peaks",
        tf32,
        ("mixed_precision",),
    ),
    Lever(
        "fp8",
        "products in fp8",
        "convert the linear layers: torchao.float8.convert_to_float8_training(model), with torch.compile",
        "8-bit products with scales: compare the loss over a whole run",
        "torchao's float8 training, 1.1 to 1.5 times",
        fp8,
    ),
    Lever(
        "flash_attention",
        "SDPA instead of attention written out",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=...)",
        "none; it needs less memory. Sums are in another order",
        "FlashAttention-2, 3 to 10 times of a plain one in 16 bits",
        flash_attention,
        ("attention_mask",),
    ),
    Lever(
        "attention_mask",
        "attention without a dense mask",
        "is_causal=True, packed sequences, or flex_attention with a block mask, instead of attn_mask",
        "none where the mask says nothing else",
        "FlashAttention-2 against memory-efficient attention, 1.5 to 4 times",
        attention_mask,
        ("flash_attention", "padding"),
    ),
    Lever(
        "padding",
        "sequences without padding",
        "pack sequences (flex_attention with a mask of documents, flash_attn_varlen_func), or batch those of like length",
        "none where the loss is a mean over tokens; batches hold other sequences",
        "none: how much of a batch is padding is not in the trace, so at most 0.6 of its work",
        padding,
        ("attention_mask",),
    ),
    Lever(
        "compile",
        "torch.compile",
        "model = torch.compile(model)",
        "a minute at the start, again for each new shape",
        _MEASURED,
        compile_,
    ),
    Lever(
        "cuda_graphs",
        "CUDA graphs",
        'torch.compile(model, mode="reduce-overhead"), or capture the step with torch.cuda.graph',
        "memory for the graph; fixed shapes, no reads of values within",
        _MEASURED,
        cuda_graphs,
        ("synchronising_reads", "cudnn_rnn"),
    ),
    Lever(
        "fused_optimizer",
        "a fused optimizer",
        "fused=True in the optimizer's constructor (foreach=True where it has none); torch._foreach_lerp_ for averages of the weights",
        "none",
        _MEASURED,
        fused_optimizer,
        ("optimizer_on_cpu",),
    ),
    Lever(
        "optimizer_on_cpu",
        "the optimizer on the card",
        "keep the optimizer's state and its step on the card; shard it (FSDP, ZeRO) where it does not fit",
        "memory: 12 bytes a parameter for AdamW in fp32",
        "the trace: what is left without it",
        optimizer_on_cpu,
        ("fused_optimizer",),
    ),
    Lever(
        "channels_last",
        "channels_last",
        "model.to(memory_format=torch.channels_last), and the same for the images",
        "none",
        "NVIDIA's layout guide, and " + _MEASURED,
        channels_last,
    ),
    Lever(
        "cudnn_benchmark",
        "cuDNN's search for fixed shapes",
        "torch.backends.cudnn.benchmark = True",
        "seconds at the start; results may differ in the last bits from run to run",
        _MEASURED,
        cudnn_benchmark,
        ("cudnn_search",),
    ),
    Lever(
        "cudnn_search",
        "no search at each new shape",
        "torch.backends.cudnn.benchmark = False, or pad images to a few sizes",
        "an algorithm that may be slower",
        "the trace: what is left without it",
        cudnn_search,
        ("cudnn_benchmark",),
    ),
    Lever(
        "checkpointing",
        "less activation checkpointing",
        "call the blocks without torch.utils.checkpoint, or checkpoint only every other one",
        "memory: what the recomputed layers hold",
        "the trace: the time of what is computed again",
        checkpointing,
        ("micro_batch", "fsdp_prefetch"),
    ),
    Lever(
        "micro_batch",
        "larger micro-batches",
        "fewer, larger micro-batches for the same batch of a step",
        "memory, in proportion",
        _MEASURED,
        micro_batch,
        ("checkpointing",),
    ),
    Lever(
        "matrix_sizes",
        "sizes that are multiples of 64",
        "pad the vocabulary (or that layer) to the next multiple of 64",
        "some unused rows",
        "the trace: what the other products reach",
        matrix_sizes,
    ),
    Lever(
        "vocabulary_loss",
        "the loss over the vocabulary in one kernel",
        "compile the projection with its loss, or use a fused linear cross entropy (Liger)",
        "none; it needs less memory",
        "Liger kernel's cross entropy, 2 to 3 times",
        vocabulary_loss,
    ),
    Lever(
        "synchronising_reads",
        "fewer values read off the card",
        "keep it a tensor on the card and read it every N steps; torch.where instead of a boolean mask",
        "figures arrive later",
        "the trace: the gaps behind the reads",
        synchronising_reads,
        ("cuda_graphs",),
    ),
    Lever(
        "pageable_copies",
        "pinned memory, or made on the card",
        "pin_memory=True in the DataLoader and .to(device, non_blocking=True); make noise with device=",
        "pinned memory on the host",
        "the trace: copies that nothing overlaps",
        pageable_copies,
    ),
    Lever(
        "data_loading",
        "more loading beside the steps",
        f"{MORE_WORKERS}, persistent_workers=True, prefetch_factor=4 in the DataLoader",
        "memory and cores of the host",
        "the trace: the card's waits for data",
        data_loading,
    ),
    Lever(
        "allocator",
        "an allocator that does not ask the driver",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "none",
        "the trace: the time of these calls",
        allocator,
    ),
    Lever(
        "no_sync",
        "gradients exchanged once a step",
        "with model.no_sync(): around all micro-batches but the last",
        "none under DDP; memory for whole gradients under FSDP",
        "the trace: exchanges that would not take place",
        no_sync,
        ("bucket_size",),
    ),
    Lever(
        "bucket_size",
        "exchange beside the backward pass",
        "bucket_cap_mb of DDP: 25 to 100; gradient_as_bucket_view=True",
        "none",
        "the trace: exchanges that nothing overlaps",
        bucket_size,
        ("no_sync",),
    ),
    Lever(
        "unused_parameters",
        "no search for unused parameters",
        "find_unused_parameters=False in DDP (static_graph=True where some are unused)",
        "none where every parameter gets a gradient",
        "the trace: the time of the search",
        unused_parameters,
    ),
    Lever(
        "fsdp_prefetch",
        "FSDP's prefetch and resharding",
        "reshard_after_forward=False where memory allows; explicit prefetch of the next layer",
        "memory for whole parameters",
        "the trace: gathers that nothing overlaps",
        fsdp_prefetch,
        ("checkpointing",),
    ),
    Lever(
        "sparse_gradients",
        "sparse gradients of the tables",
        "sparse=True in the embedding, with torch.optim.SparseAdam for the tables",
        "Adam's moments move only for rows that are used",
        "bytes over the memory's bandwidth",
        sparse_gradients,
    ),
    Lever(
        "kv_cache",
        "a cache of keys and values",
        "generate with past keys and values (use_cache=True, or a static cache)",
        "memory: two tensors a layer",
        _MEASURED,
        kv_cache,
    ),
    Lever(
        "batched_generation",
        "generation in one batch",
        "generate(prompts.repeat_interleave(n, 0)), or num_return_sequences=n, instead of a loop over sequences",
        "memory: keys and values of all sequences at once",
        "the trace: generation that would take place once",
        batched_generation,
    ),
    Lever(
        "cudnn_rnn",
        "the recurrent layer as one call",
        "nn.LSTM or nn.GRU over the whole sequence instead of cells in a loop",
        "none where each step of the loop depends on the layer alone",
        _MEASURED,
        cudnn_rnn,
        ("cuda_graphs",),
    ),
)
