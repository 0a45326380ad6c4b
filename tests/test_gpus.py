"""GPUs, counted in made-up file systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtrain.run import devices


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def touch(root: Path, *names: str, text: str = "") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def smi(path: Path, lines: str, code: int = 0) -> None:
    touch(path.parent, path.name, text=f"#!/bin/sh\n[ $1 = -L ] && printf '{lines}'\nexit {code}\n")
    path.chmod(0o755)


TWO = "GPU 0: NVIDIA A (UUID: GPU-1)\\n  MIG 1g.5gb Device 0: (UUID: MIG-1)\\nGPU 1: B\\n"


def test_none(tmp_path: Path) -> None:
    assert devices.count_gpus(tmp_path) == 0
    touch(tmp_path, "dev/nvidia-caps", "dev/null", "dev/nvidia-uvm")
    assert devices.count_gpus(tmp_path) == 0


def test_devices_of_nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "dev/nvidia0", "dev/nvidia1", "dev/nvidia12", "dev/nvidiactl")
    assert devices.count_gpus(tmp_path) == 3
    for chosen, left in (("1", 1), ("GPU-a,GPU-b", 2), ("0,1,2,3", 3), ("-1", 0), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert devices.count_gpus(tmp_path) == left, chosen


@pytest.mark.parametrize("hint", ["dev/dxg", "dev/nvidiactl", "proc/driver/nvidia/gpus"])
@pytest.mark.parametrize("place", ["bin/nvidia-smi", "usr/lib/wsl/lib/nvidia-smi"])
def test_nvidia_smi_is_asked_where_the_devices_are_not(
    hint: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path / place, TWO)
    assert devices.count_gpus(tmp_path) == 0, "nothing speaks of a GPU"
    touch(tmp_path, hint)
    assert devices.count_gpus(tmp_path) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert devices.count_gpus(tmp_path) == 1


def test_a_container_that_has_none_of_its_hosts_gpus(tmp_path: Path) -> None:
    touch(tmp_path, "proc/driver/nvidia/gpus/0000:00:1e.0/information")
    assert devices.count_gpus(tmp_path) == 0, "there is no nvidia-smi"
    smi(tmp_path / "bin/nvidia-smi", "Failed to initialize NVML: Driver Not Loaded\\n", code=9)
    assert devices.count_gpus(tmp_path) == 0
    (tmp_path / "bin/nvidia-smi").write_text("no program")
    assert devices.count_gpus(tmp_path) == 0


def test_a_jetson(tmp_path: Path) -> None:
    touch(tmp_path, "dev/nvhost-gpu")
    assert devices.count_gpus(tmp_path) == 1


def test_amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    touch(tmp_path, "dev/kfd")
    for node, gpu in enumerate(("0", "4321", "1234")):  # the first is the processor
        touch(tmp_path, f"{nodes}/{node}/gpu_id", text=f"{gpu}\n")
    assert devices.count_gpus(tmp_path) == 0, "TensorFlow here is not AMD's"
    monkeypatch.setattr(
        devices, "version", lambda name: "2.19" if name == "tensorflow-rocm" else None
    )
    assert devices.count_gpus(tmp_path) == 2
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    assert devices.count_gpus(tmp_path) == 1
