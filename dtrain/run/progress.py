"""What a task last wrote to ``progress.json``, in words."""

from __future__ import annotations

from dtrain.files.fields import Json

#: What ``epoch`` and ``step`` of a report count where it does not say so.
UNITS = ("epoch", "step")


def counted(report: Json) -> str:
    """Return how far it is: ``epoch 1/2  step 3/9``."""
    first, second = report.get("units", UNITS)
    epochs, steps = report["epochs"], report["total_steps"]
    return f"{first} {report['epoch']}/{epochs}  {second} {report['step']}/{steps}"


def measured(report: Json) -> str:
    """Return the loss, how fast it is, and what was evaluated last."""
    validation = [
        f"{name} {_number(value)}"
        for name, value in report["metrics"].items()
        if name.startswith("val_")
    ]
    loss = [] if "units" in report else [f"loss {_number(report['loss'])}"]
    return "  ".join([*loss, f"{report['examples_per_second']:,.0f} examples/s", *validation])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
