"""Names of what passes through a task, whose types frameworks and libraries do not declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

#: A tensor of the backend's, or what its operations take for one; and several, in an order.
Tensor: TypeAlias = Any
Tensors: TypeAlias = list[Tensor]
#: An array or tensor, or a structure of them (:mod:`dtrain.data.nest`).
Nest: TypeAlias = Any
#: Inputs, targets and weights of examples, as far as there are any.
Batch: TypeAlias = tuple[Nest, ...]
#: A variable: of Keras', or of the framework itself.
Variable: TypeAlias = Any
#: What a step returned, by name: scalars, or nests of them.
Logs: TypeAlias = dict[str, Any]
#: A function with the parameters of another, which it is called for or calls.
Function: TypeAlias = Callable[..., Any]
#: A module, class or object of a library's, of which more is used or replaced than it declares.
Foreign: TypeAlias = Any
#: Keyword arguments, such as those of a node with ``_target_``, or attributes, by name.
Options: TypeAlias = dict[str, Any]
