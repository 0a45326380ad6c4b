"""Rules over keys of several groups: validators of the whole, each of which names its keys."""

from typing import Self

from pydantic import model_validator

from dtrain.config.fields import Group, Plain, typed
from dtrain.config.node import nodes
from dtrain.config.schema import strategies
from dtrain.errors import refuse
from dtrain.host.frameworks import FRAMEWORKS

#: By backend, the keys that it does not read: the value that they have then, and why there is no
#: other.
UNREAD: dict[str, dict[str, tuple[str, str]]] = {
    "tensorflow": {
        "trainer.compile": ("false", "TensorFlow compiles steps by XLA (hardware.jit_compile)")
    },
    "jax": {
        "hardware.inter_op_threads": (
            "null", "JAX has one pool of threads (hardware.intra_op_threads)"
        ),
        "hardware.onednn": ("true", "JAX does not use these kernels"),
        "hardware.jit_compile": ("false", "every step of JAX is compiled by XLA"),
        "trainer.compile": ("false", "every step of JAX is compiled by XLA"),
        "strategy.communication": ("auto", "JAX has gloo on CPUs, and NCCL on NVIDIA GPUs"),
        "strategy.tpu": ("local", "a process of JAX runs on a host of the TPU itself"),
        "strategy.zone": ("null", "a process of JAX runs on a host of the TPU itself"),
        "strategy.project": ("null", "a process of JAX runs on a host of the TPU itself"),
    },
    "torch": {
        "hardware.jit_compile": ("false", "PyTorch has torch.compile (trainer.compile)"),
        "strategy.communication": ("auto", "PyTorch has gloo on CPUs, and NCCL on NVIDIA GPUs"),
        "strategy.rules": ("auto", "fully_shard divides the first axis of each parameter"),
    },
}  # fmt: skip


class Rules(Group):
    """What the groups of a configuration have to be to each other."""

    @model_validator(mode="after")
    def _backend_has_strategy(self) -> Self:
        """Refuse a strategy that the backend does not have."""
        backend, strategy = self._backend(), self._group("strategy")
        having = strategies.backends(strategy["_target_"])
        if backend not in having:
            titles = " and ".join(FRAMEWORKS[name].title for name in having)
            refuse("strategy", f"{titles} {'has' if len(having) == 1 else 'have'} this strategy, "
                   f"and {FRAMEWORKS[backend].title} has not", strategy["name"],
                   accepted=f"those of docs/backends.md, or backend={having[0]}",
                   typed=f"backend={having[0]}")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _backend_reads_keys(self) -> Self:
        """Refuse another value than the default of a key that the backend does not read."""
        backend = self._backend()
        having = strategies.backends(self._group("strategy")["_target_"])
        for key, (accepted, why) in UNREAD[backend].items():
            group, _, name = key.partition(".")
            value = typed(self._group(group).get(name, accepted))
            if value != accepted:
                readers = [f"backend={name}" for name in having if key not in UNREAD[name]]
                refuse(key, f"is for {' and '.join(readers) or 'other strategies'}: {why}", value,
                       accepted=", or ".join([accepted, *readers[:1]]),
                       typed=f"{key}={accepted}")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _functions_are_of_the_backend(self) -> Self:
        """Refuse PyTorch's losses, metrics and optimizers beside another framework."""
        trainer = self._group("trainer")
        groups = {"model": self._group("model"), "optimizer": self._group("optimizer"),
                  "trainer": {"loss": trainer["loss"], "metrics": trainer["metrics"]}}  # fmt: skip
        for group, options in groups.items() if self._backend() != "torch" else ():
            for key, node, _ in nodes(options, group):
                if node["_target_"].split(".")[0] in ("torch", "torchmetrics"):
                    refuse(f"{key}._target_", "is PyTorch's, and the run computes with "
                           f"{FRAMEWORKS[self._backend()].title}", node["_target_"],
                           accepted="one of Keras', or backend=torch",
                           typed="backend=torch")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _weights_have_rules(self) -> Self:
        """Refuse rules for names of weights where none are read."""
        init = self._group("init")
        if init["weights"] is None and init["rules"]:
            refuse("init.rules", "are of init.weights, which is null", "[...]",
                   accepted="init.weights with what they are for",
                   typed="'init.rules=[]'")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _logged_model_is_kept(self) -> Self:
        """Refuse the name of a model that is not logged, and the best one where none is kept."""
        tracking = self._group("tracking")
        which, name = tracking.get("model", "none"), tracking.get("register")
        if name is not None and which == "none":
            refuse("tracking.register", "tracking.model=none logs no model that could have a name",
                   name, typed=f"tracking.model=best tracking.register={name}")  # fmt: skip
        if which == "best" and not self._group("checkpoint")["best"]:
            refuse("tracking.model", "checkpoint.best=false keeps the newest checkpoints alone",
                   which, accepted="final, or checkpoint.best=true",
                   typed="tracking.model=final")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _workers_apply_gradients(self) -> Self:
        """Refuse a sum of gradients that asynchronous workers would share."""
        accumulated = self._group("optimizer").get("gradient_accumulation_steps")
        if accumulated is not None and self._group("strategy").get("update") == "async":
            refuse("optimizer.gradient_accumulation_steps", "asynchronous workers would add their "
                   "gradients to one sum", accumulated, accepted="null, or strategy.update=sync",
                   typed="strategy.update=sync")  # fmt: skip
        return self

    def _backend(self) -> str:
        chosen: str = vars(self)["backend"]
        having = strategies.backends(self._group("strategy")["_target_"])
        return having[0] if chosen == "auto" else chosen

    def _group(self, name: str) -> dict[str, Plain]:
        value: Plain = vars(self)[name]
        return {**vars(value)} if isinstance(value, Group) else value
