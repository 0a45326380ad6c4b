"""Fully sharded: a part of each batch, of each weight and of each slot on each device."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import keras
import numpy as np
import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from dtrain.errors import refuse
from dtrain.run import checkpoint
from dtrain.task import keras_internals
from dtrain.task.aliases import Variable
from dtrain.task.backends.torch.arrays import whole
from dtrain.task.backends.torch.plain import STEPS, PlainModel, named_parameters
from dtrain.task.backends.torch.strategy import OneDevice
from dtrain.task.model import train_state


class FullySharded(OneDevice):
    """Parts of plain modules, by FSDP2 (``torch.distributed.fsdp.fully_shard``).

    Weights are gathered where they are read, and gradients scattered. Models of Keras are refused:
    their variables would go on with the whole weights, and train wrong without an error.

    Args:
        devices: the name of the device of this task.
        options: for JAX; they have their defaults here.
    """

    def __init__(self, devices: list[str], **options: object):
        super().__init__(devices)
        several = self.tasks.size > 1
        self.abilities = dataclasses.replace(
            self.abilities, reads_together=several, predicts_alone=not several
        )
        self._mesh: DeviceMesh | None = None
        if self.tasks.size > 1:
            kind = devices[0].partition(":")[0]
            self._mesh = init_device_mesh(kind, (self.tasks.size,))

    def place(self, model: keras.Model) -> None:
        """Let each task have its parts of a module's weights.

        Raises:
            UsageError: it is no plain module, or it has sparse gradients.
        """
        if not isinstance(model, PlainModel):
            refuse("strategy", f"{type(model).__name__} is a model of Keras', and PyTorch shards "
                   "modules", "fsdp", accepted="a function that returns a torch.nn.Module, or "
                   "backend=jax", typed="backend=jax")  # fmt: skip
        super().place(model)
        if self._mesh is None:
            return
        for name, each in model.module.named_modules():
            if getattr(each, "sparse", False) is True:
                refuse("model", "gives sparse gradients, which PyTorch does not divide into parts",
                       f"{name}.sparse", accepted="sparse=False, or strategy=mirrored",
                       typed="strategy=mirrored")  # fmt: skip
        for part in model.parts.values():
            for unit in _units(part):
                fully_shard(unit, mesh=self._mesh)
            # Also after an evaluation: what is gathered would not be what is loaded afterwards.
            fully_shard(part, mesh=self._mesh, reshard_after_forward=True)
            for unit in part.modules():
                if self.gradient_reduction == "sum" and isinstance(unit, FSDPModule):
                    unit.set_gradient_divide_factor(1.0)  # PyTorch would average
                    unit.set_force_sum_reduction_for_comms(True)  # gloo adds up, scales nothing
        for step in (name for name in STEPS if hasattr(model.module, name)):
            register_fsdp_forward_method(model.module, step)
        parameters = dict(named_parameters(model))
        for variable in model.state:
            if variable.name in parameters:
                keras_internals.exchange(variable, parameters[variable.name])

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Refuse an optimizer of Keras': its slots would be whole.

        Raises:
            UsageError: it is one.
        """
        if keras_internals.is_of_keras(type(optimizer)) and self._mesh is not None:
            refuse("optimizer", "is an optimizer of Keras', and weights in parts are updated by "
                   "PyTorch's", type(optimizer).__name__, accepted="torch.optim.*",
                   typed="optimizer=custom optimizer._target_=torch.optim.AdamW")  # fmt: skip

    @torch.no_grad()
    def read(self, variables: Mapping[str, Variable]) -> dict[str, np.ndarray]:
        """Copy variables to the host, whole; every task does."""
        return {
            name: np.array(keras.ops.convert_to_numpy(whole(variable.value)))
            for name, variable in variables.items()
        }

    @torch.no_grad()
    def write(self, variables: Mapping[str, Variable], arrays: Mapping[str, np.ndarray]) -> None:
        """Set each variable to the array of its name; large ones are those of the chief."""
        for name, variable in variables.items():
            value, array = variable.value, arrays[name]
            if self._mesh is None or not isinstance(value, torch.Tensor):
                variable.assign(array)
                continue
            whole = torch.empty(array.shape, dtype=value.dtype, device=value.device)
            if self.tasks.rank == 0 or array.nbytes <= checkpoint.SMALL:
                whole.copy_(torch.as_tensor(np.array(array)))
            if isinstance(value, DTensor):
                value.copy_(distribute_tensor(whole, self._mesh, value.placements))
            else:
                distributed.broadcast(whole, 0)
                value.copy_(whole)

    @contextlib.contextmanager
    def whole(self, model: keras.Model) -> Iterator[None]:
        """Let the chief read inside, by itself, all variables; every task enters."""
        named = train_state.variables(model) if self._mesh is not None else {}
        weights = {n: v for n, v in named.items() if isinstance(v.value, DTensor)}
        weights = {n: v for n, v in weights.items() if isinstance(v, keras.Variable)}
        values = [whole(variable.value) for variable in weights.values()]
        with keras_internals.exchanged([*weights.values()], values):
            yield

    def check_copies(self, model: keras.Model) -> None:
        """Check nothing: each part is there once."""


def _units(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules whose weights are gathered together, each with those inside of it.

    They are called as a whole, and no other one has one of their weights: those are the root's.
    """

    def called(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        for child in module.children():
            if type(child).forward is torch.nn.Module.forward:  # a ModuleList, which is a container
                yield from called(child)
            else:
                yield child

    units = list(called(module))
    owned = [[id(p) for p in unit.parameters()] for unit in units]
    owned.append([id(p) for p in module.parameters(recurse=False)])
    owners = collections.Counter(itertools.chain(*owned))
    return [
        unit
        for unit, own in zip(units, owned[:-1], strict=True)
        if own and all(owners[each] == 1 for each in own)
    ]
