"""One look at a card on which a kernel is resident: whether no data moves, to or from anywhere."""

from perfwatch_probes import readings as r

# Share of the maximum. Measured on H200: 0.00000 of the memory's bandwidth in a stalled all_reduce and in a kernel that spins.
FLAT = 0.0005
FLAT_TENSOR = 0.005
# What blocks that wait for each other ask atomically is counted for the tensor cores too: two thirds of what is counted for the
# integers. Measured on H200: 0.0020 and 0.0029; 0.0102 and 0.0153 with all multiprocessors full of warps. Nothing was stored or
# fetched then (0.00000 of the bandwidth), and no floating point used. A product needs its operands from memory.
WAITING_TENSOR = 0.02
# Measured 0.7 (our own questions), 11 while NCCL's watchdog asks after its events, 23 while another job of the host begins to use
# CUDA; 100 launches of kernels a second stay below 1.
FLAT_MIB_PER_SECOND = 30.0
# Whoever asks the driver stirs the link both ways alike: some 3 MiB when a process begins to (nvidia-smi, another perfwatch), 34 MiB/s
# in a look of 0.1 s, and 1.0 to 1.35 times as much from the card as to it (two H100, fourteen askers beside). A copy goes one way.
ASKING_MIB_PER_SECOND = 130.0
ASKING_RATIO = (1.0, 1.4)
NOT_STORED = 0.00006  # of the memory's bandwidth: 300 MiB/s to the card's own memory


def flat(look: r.GpuActivity) -> bool:
    """Whether no data moves: to or from the card's memory, the host, another card, or through the tensor cores."""
    links = (look.nvlink_received_mib_per_second, look.nvlink_sent_mib_per_second, *_of_copies(look))
    return (
        look.dram is not None
        and look.dram <= FLAT
        and ((look.tensor or 0.0) <= FLAT_TENSOR or _asks_only(look))
        and all(rate is None or rate <= FLAT_MIB_PER_SECOND for rate in links)
    )


def _of_copies(look: r.GpuActivity) -> tuple[float | None, float | None]:
    """What crosses PCIe each way in MiB/s, but for what goes to and fro when somebody asks the driver."""
    received, sent = look.pcie_received_mib_per_second, look.pcie_sent_mib_per_second
    if received and sent and sent <= ASKING_MIB_PER_SECOND and ASKING_RATIO[0] <= sent / received <= ASKING_RATIO[1]:
        return 0.0, 0.0
    return received, sent


def _asks_only(look: r.GpuActivity) -> bool:
    """Whether what is counted for the tensor cores comes from blocks that ask atomically whether the others have come."""
    floating = (look.fp32, look.fp16, look.fp64)
    return (
        look.tensor is not None
        and look.integer is not None
        and look.tensor <= min(WAITING_TENSOR, look.integer)
        and look.dram is not None
        and look.dram <= NOT_STORED
        and all(used is not None and used <= FLAT for used in floating)
    )
