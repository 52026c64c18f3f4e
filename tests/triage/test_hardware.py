"""What a card can do: known cards agree with their data sheets, unknown ones are said to be unknown."""

import pytest

from perfwatch.triage.cards.hardware import (
    data_sheet_tflops,
    dram_peak_bytes_per_second,
    tensor_flops_per_clock,
    tensor_tflops_at,
    tensor_yield,
    unknown,
)
from perfwatch_probes.readings import Gpu
from tests.cards import h200

# name, compute capability, multiprocessors, boost clock in MHz, dense 16-bit TFLOP/s: from NVIDIA's data sheets.
SHEETS = [
    ("Tesla V100-SXM2-16GB", (7, 0), 80, 1530, 125.0),
    ("Tesla T4", (7, 5), 40, 1590, 65.0),
    ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, 312.0),
    ("NVIDIA A10", (8, 6), 72, 1695, 125.0),
    ("NVIDIA TITAN RTX", (7, 5), 72, 1770, 130.5),
    ("Tesla V100S-PCIE-32GB", (7, 0), 80, 1597, 130.0),
    ("NVIDIA L40S", (8, 9), 142, 2520, 362.0),
    ("NVIDIA L40", (8, 9), 142, 2490, 181.05),
    ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1830, 989.0),
    ("NVIDIA B200", (10, 0), 148, 1850, 2250.0),
]


@pytest.mark.parametrize(("name", "capability", "sms", "clock", "tflops"), SHEETS)
def test_rate_times_clock_is_what_the_data_sheet_says(
    name: str, capability: tuple[int, int], sms: int, clock: int, tflops: float
) -> None:
    """Two independent sources for every generation."""
    card = Gpu(uuid="GPU-0", index=0, name=name, compute_capability=capability, sms=sms)

    assert tensor_tflops_at(card, clock) == pytest.approx(tflops, rel=0.02)
    assert data_sheet_tflops(card) == tflops


def test_a_consumer_card_accumulates_in_fp32_at_half_the_rate() -> None:
    """165 TFLOP/s for a GeForce RTX 4090, where a workstation card of the same chip does twice as much."""
    card = Gpu(uuid="GPU-0", index=0, name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9), sms=128)

    assert tensor_tflops_at(card, 2520) == pytest.approx(165.0, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H800 PCIe", 756.0),
        ("NVIDIA H100 80GB HBM2e", 756.0),
        ("NVIDIA H800", 989.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA H200 NVL", 835.0),
        ("NVIDIA GH200 480GB", 989.0),
        ("NVIDIA B100", 1750.0),
        ("NVIDIA B300 SXM6 AC", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA GB300", 2500.0),
        ("NVIDIA L40G", None),
        ("NVIDIA GB10", None),
    ],
)
def test_a_product_has_the_peak_of_its_own_data_sheet(name: str, tflops: float | None) -> None:
    """A card in a slot does less than a module of the same name; what no sheet states is unknown."""
    assert data_sheet_tflops(Gpu(uuid="GPU-0", index=0, name=name)) == tflops


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce GTX 1660", "NVIDIA T1000 8GB", "NVIDIA T400 4GB", "NVIDIA GeForce MX450"]
)
def test_turing_without_tensor_cores_has_no_tensor_peak(name: str) -> None:
    """Its compute capability is that of a T4."""
    card = Gpu(uuid="GPU-0", index=0, name=name, compute_capability=(7, 5), sms=22)

    assert tensor_tflops_at(card, 1785) is None
    assert "no tensor cores" in unknown(card)
    assert data_sheet_tflops(card) is None


@pytest.mark.parametrize(
    ("bits", "clock", "gigabytes"),
    [(6144, 3201, 4917), (5120, 1215, 1555), (256, 5001, 320), (384, 9001, 864), (4096, 877, 898)],
)
def test_bus_times_clock_is_the_memory_of_the_data_sheet(bits: int, clock: int, gigabytes: int) -> None:
    """H200, A100 40 GB, T4, L40S and V100."""
    card = Gpu(uuid="GPU-0", index=0, name="a card", memory_bus_bits=bits, memory_clock_max_mhz=clock)

    assert (dram_peak_bytes_per_second(card) or 0) / 1e9 == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        (Gpu(uuid="G", index=0, name="NVIDIA Future", compute_capability=(99, 0), sms=300), "not in the table"),
        (Gpu(uuid="G", index=0, name="NVIDIA A100", compute_capability=(8, 0)), "how many multiprocessors"),
        (Gpu(uuid="G", index=0, name="NVIDIA A100", sms=108), "compute capability"),
    ],
)
def test_of_an_unknown_card_nothing_is_assumed(card: Gpu, why: str) -> None:
    """A wrong peak would make every share of it wrong."""
    assert tensor_flops_per_clock(card) is None
    assert tensor_tflops_at(card, 2000) is None
    assert why in unknown(card)


@pytest.mark.parametrize(
    ("name", "capability", "sheet"),
    [("NVIDIA H20", (9, 0), 148.0), ("NVIDIA L20", (8, 9), 119.5), ("NVIDIA A10G", (8, 6), 70.0)],
)
def test_a_product_that_is_held_back_is_not_taken_for_its_architecture(
    name: str, capability: tuple[int, int], sheet: float
) -> None:
    """What it does in a clock is not known; what its maker states is."""
    card = Gpu(uuid="GPU-0", index=0, name=name, compute_capability=capability, sms=78)

    assert tensor_tflops_at(card, 1980) is None
    assert "not known" in unknown(card)
    assert data_sheet_tflops(card) == sheet


def test_a_known_card_is_not_called_unknown() -> None:
    """There is nothing to say then."""
    assert unknown(h200()) == ""
    assert tensor_tflops_at(h200(), None) is None


# Share of the time with a kernel resident, clock in MHz, and what a loop that counts its own FLOPs had of told ones: H100, H200.
LOADS = [
    (0.95, 1388, 1.006),
    (0.96, 1436, 0.964),
    (0.95, 1485, 0.912),
    (0.92, 1800, 0.91),
    (0.26, 1980, 0.954),
    (0.08, 1980, 1.0),
]


@pytest.mark.parametrize(("busy", "clock", "share"), LOADS)
def test_a_hopper_card_brings_what_loops_counted_by_its_load_and_its_clock(
    busy: float, clock: float, share: float
) -> None:
    """Within 5 %."""
    assert tensor_yield(h200(), busy, clock) == pytest.approx(share, rel=0.05)
    assert tensor_yield(Gpu(uuid="GPU-0", index=0, name="A100", compute_capability=(8, 0)), busy, clock) == 1.0
