"""What there is to tune of a configuration on this machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from dtrain.config.schema import Config
from dtrain.controller.backend import reads
from dtrain.controller.plan import Plan
from dtrain.controller.resources.devices import Machine
from dtrain.controller.tuning.search import THREADS, WAITS, Coordinate, Found, Setting
from dtrain.errors import UsageError

DEVICES = "hardware.devices"
JIT = "hardware.jit_compile"
ONEDNN = "hardware.onednn"
PRECISION = "hardware.precision"
WORKERS = "dataset.workers"


def of(config: Config, planned: Plan, machine: Machine, plain: Found) -> list[Coordinate]:
    """Return the coordinates, in the order in which they are tried.

    What decides most comes first; threads come again where something else has changed what they
    have to do.

    Args:
        config: settled.
        planned: its processes.
        machine: that they run on.
        plain: what the trial of the plain setting has measured.
    """
    threads = _threads(planned, machine)
    on_cpu = planned.cluster.device_kind == "cpu"
    axes = [_replicas(config, planned, machine), threads]
    if on_cpu:
        axes.append(Coordinate([{ONEDNN: not config.hardware.onednn}]))
    axes.append(_jit(config, planned))
    other = "float32" if config.hardware.precision.name != "float32" else "mixed_bfloat16"
    axes.append(Coordinate([{PRECISION: other}]))
    axes.append(_readers(config, machine, plain))
    axes.append(Coordinate(threads.settings, lambda best: any(key != THREADS for key in best)))
    axes = [dataclasses.replace(each, settings=[s for s in each.settings
                                                 if all(reads(config, key) for key in s)])
             for each in axes]  # fmt: skip
    return [each for each in axes if each.settings]


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... and ``most``."""
    return sorted({*(2**n for n in range(most.bit_length())), most})


def _replicas(config: Config, planned: Plan, machine: Machine) -> Coordinate:
    """Return other numbers of devices, each with its part of the cores, where they are replicas."""
    cluster, strategy = planned.cluster, planned.strategy
    if len(cluster.tasks) > cluster.together or cluster.device_kind == "tpu":
        return Coordinate([])
    on_cpu = cluster.device_kind == "cpu"
    settings: list[Setting] = []
    for devices in _powers(machine.cores if on_cpu else machine.gpus):
        try:
            replicas = strategy.replicas(1, devices)
        except UsageError:
            continue
        if devices == cluster.chief.devices * cluster.together or replicas == cluster.replicas:
            continue  # more devices of a strategy with one replica do nothing
        if config.trainer.batch_size % replicas == 0:
            share = {THREADS: max(1, machine.cores // devices)} if on_cpu else {}
            settings.append({DEVICES: devices, **share})
    return Coordinate(settings)


def _threads(planned: Plan, machine: Machine) -> Coordinate:
    cluster = planned.cluster
    if cluster.device_kind != "cpu" or len(cluster.tasks) > 1:
        return Coordinate([])  # tasks that share the machine have a core of their own each
    plain = cluster.chief.threads or machine.cores
    return Coordinate([{THREADS: n} for n in _powers(machine.cores) if n != plain])


def _jit(config: Config, planned: Plan) -> Coordinate:
    if config.hardware.jit_compile:
        return Coordinate([{JIT: False}])
    possible = planned.strategy.compilable and planned.cluster.replicas == 1
    return Coordinate([{JIT: True}] if possible else [], apart=[THREADS])


def _readers(config: Config, machine: Machine, plain: Found) -> Coordinate:
    given: Any = config.dataset.get("workers")
    if given is None or plain.waited < WAITS:
        return Coordinate([])
    return Coordinate([{WORKERS: n} for n in _powers(machine.cores) if n != given])
