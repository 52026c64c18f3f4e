"""GPM metrics that somebody asks for by NVML's own names and numbers."""

import pytest

from perfwatch_probes.nvml_metrics import chosen, known
from perfwatch_probes.nvml_sampler import Sampler
from perfwatch_probes.nvml_thinning import thinned
from perfwatch_probes.readings import GpuActivity
from tests.nvml_layer import WORK, machine
from tests.probes.nvml_watching import Clock, of


def test_a_list_takes_numbers_ranges_and_names() -> None:
    """As NVML's header has them; of a range what there is."""
    assert chosen("30, 62-64,NVDEC_1_util") == {
        "nvdec_0_util": 30,
        "nvlink_l0_rx_per_sec": 62,
        "nvlink_l0_tx_per_sec": 63,
        "nvlink_l1_rx_per_sec": 64,
        "nvdec_1_util": 31,
    }
    assert list(chosen("13-20")) == ["fp16_util", "pcie_tx_per_sec"]
    assert "max" not in known()


@pytest.mark.parametrize("text", ["sm_utils", "14-19", "1,,2", "-3", "9-", "14"])
def test_a_word_that_is_no_metric_is_named(text: str) -> None:
    """Not passed over: a column that somebody waits for would be missing."""
    with pytest.raises(ValueError, match=rf"^{text if ',' not in text else ''}$"):
        chosen(text)


def test_what_was_asked_for_is_read_with_the_rest_and_what_a_card_lacks_stays_unknown() -> None:
    """Percent become shares, traffic stays MiB/s, both are averaged by time."""
    nvml = machine(1)
    clock = Clock()
    sampler = Sampler(nvml, clock, others=chosen("nvdec_0_util,nvlink_l0_rx_per_sec,nvofa_0_util"))
    told = sampler.start()
    sampler.attend()
    for seconds, decoder in ((0.0, 0.0), (0.1, 20.0), (0.3, 40.0)):
        clock.now += seconds
        nvml.cards[0].activity = WORK | {30: decoder, 62: 700.0}
        told += sampler.round()

    assert [one.others for one in of(GpuActivity, told)] == [
        {"nvdec_0_util": 0.2, "nvlink_l0_rx_per_sec": 700.0},
        {"nvdec_0_util": 0.4, "nvlink_l0_rx_per_sec": 700.0},
    ]
    (mean,) = of(GpuActivity, thinned(one for one in told if isinstance(one[1], GpuActivity)))
    assert mean.others == {"nvdec_0_util": 0.35, "nvlink_l0_rx_per_sec": 700.0}
    assert mean.graphics == 1.0
