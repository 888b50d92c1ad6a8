"""`Gpu` of cloudmesh-gpu, beside an nvidia-smi that describes an H200 as driver 580 does, shortened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairmile.compat import gpu_log
from fairmile.compat.gpu import Gpu

DESCRIPTION = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:01:00.0">
    <product_name>NVIDIA H200</product_name>
    <product_architecture>Hopper</product_architecture>
    <utilization><gpu_util>7 %</gpu_util><memory_util>1 %</memory_util>
      <encoder_util>0 %</encoder_util><decoder_util>0 %</decoder_util></utilization>
    <temperature><gpu_temp>31 C</gpu_temp></temperature>
    <gpu_power_readings><average_power_draw>75.1 W</average_power_draw>
      <instant_power_draw>76.51 W</instant_power_draw></gpu_power_readings>
    <processes><process_info><pid>7</pid></process_info><process_info><pid>8</pid></process_info></processes>
  </gpu>
</nvidia_smi_log>
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nvidia-smi"
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{DESCRIPTION}END\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_what_is_there_and_what_it_does() -> None:
    gpu = Gpu()
    assert (gpu.count, gpu.vendor()) == (1, "NVIDIA")
    assert gpu.system() == [
        {"product_name": "NVIDIA H200", "product_architecture": "Hopper", "vendor": "NVIDIA"},
    ]
    assert gpu.status()[0]["temperature"] == {"gpu_temp": "31 C"}
    assert gpu.ps() == {0: [{"pid": "7"}, {"pid": "8"}]}
    assert gpu.smi(output="json")["nvidia_smi_log"]["gpu"][0]["@id"] == "00000000:01:00.0"


def test_a_log_is_one_that_cloudmesh_reads(tmp_path: Path) -> None:
    log = tmp_path / "gpu.log"
    Gpu().watch(logfile=str(log), delay=0.01, repeated=3)
    samples = gpu_log.read(log).samples
    assert len(samples.at_ns) == 3
    power = [index for index, channel in enumerate(samples.channels) if channel.unit == "W"]
    assert [list(samples.columns[index]) for index in power] == [[76.51] * 3]
