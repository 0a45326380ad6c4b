"""The states of a metric of ``torchmetrics``, and how they are reduced."""

from __future__ import annotations

from typing import Any

import torch


def summed_states(metric: Any) -> dict[str, torch.Tensor] | None:
    """Return what states of a metric begin with, by name; None where one is no sum from 0 on."""
    reductions, states = getattr(metric, "_reductions", None), metric.metric_state
    if not reductions or reductions.keys() != states.keys():
        return None
    for name, state in states.items():
        reduction = getattr(reductions[name], "__name__", "")
        if reduction != "dim_zero_sum" or not isinstance(state, torch.Tensor) or state.any():
            return None
    return dict(states)
