"""What a task last wrote to ``progress.json``, and the end of an epoch, as lines."""

from __future__ import annotations

from collections.abc import Iterator

from dtrain.files.fields import Json

#: What ``epoch`` and ``step`` of a report count where it does not say so.
UNITS = ("epoch", "step")
#: Characters of a moving line's bar.
_LEAST_BAR, _LONGEST_BAR = 8, 30
#: Between two fields of a line.
_GAP = "  "


def _place(report: Json, aligned: bool = False) -> tuple[str, str]:
    """Return the epoch and the step; a fork counts epochs of its own."""
    first, second = report.get("units", UNITS)
    before = report.get("epochs_before", 0)
    epochs, steps = f"{report['epochs'] - before}", f"{report['total_steps']}"
    epoch, step = f"{report['epoch'] - before}", f"{report['step']}"
    if aligned:
        epoch, step = epoch.rjust(len(epochs)), step.rjust(len(steps))
    return f"{first} {epoch}/{epochs}", f"{second} {step}/{steps}"


def counted(report: Json) -> str:
    """Return how far it is: ``epoch 1/2  step 3/9``."""
    return _GAP.join(_place(report))


def measured(report: Json) -> str:
    """Return the loss, and how fast it is."""
    loss = [] if "units" in report else [f"loss {number(report['loss'])}"]
    return _GAP.join([*loss, f"{report['examples_per_second']:,.0f} examples/s"])


def moving_line(report: Json, left: str, width: int) -> str:
    """Return a line that is as wide whatever the numbers are.

    Args:
        report: of the task.
        left: the time that is left.
        width: of the terminal; what does not fit is left out at the right.
    """
    epoch, step = _place(report, aligned=True)
    fields = [step, f"{left:>8} left"]
    if report.get("evaluated"):
        fields.append("validating".ljust(14))
    elif "units" not in report:
        fields.append(f"loss {number(report['loss']):<9}")
    fields.append(f"{report['examples_per_second']:>9,.0f} examples/s")
    while True:
        bar = width - 1 - len(_GAP.join([epoch, *fields])) - len(_GAP)
        if bar >= _LEAST_BAR or len(fields) == 1:
            break
        fields.pop()
    bar = max(0, min(bar, _LONGEST_BAR))
    done = bar * report["step"] // max(1, report["total_steps"])
    return _GAP.join([epoch, "━" * done + "─" * (bar - done), *fields])


class EpochLines:
    """Lines of epochs, in which a metric stands below itself.

    Attributes:
        objective: of the run; None where it is not known yet.
    """

    def __init__(self) -> None:
        self.objective: str | None = None
        self._widths: dict[str, int] = {}

    def line(self, event: Json, width: int | None) -> str:
        """Return the line of an epoch.

        Args:
            event: ``epoch`` of the journal.
            width: of the terminal: metrics that do not fit are left out at the right.
        """
        epochs = event["epochs"] - event.get("epochs_before", 0)
        epoch = event["epoch"] - event.get("epochs_before", 0)
        line = f"epoch {epoch:>{len(str(epochs))}}/{epochs}"
        end = f"{_GAP}{_duration(event['epoch_seconds']):>7}"
        best = f"{_GAP}best"
        for name in self._ordered(event["metrics"]):
            text = number(event["metrics"][name])
            self._widths[name] = max(self._widths.get(name, 0), len(text))
            field = f"{_GAP}{name} {text:<{self._widths[name]}}"
            if width is not None and len(line + field + end + best) > width:
                break
            line += field
        return line + end + (best if event["best"] else "")

    def _ordered(self, metrics: Json) -> Iterator[str]:
        """Yield the names of metrics: losses, the objective, and each other with its validation."""
        pairs = (name for each in metrics for name in (each, f"val_{each}"))
        names = ("loss", "val_loss", self.objective, *pairs)
        yield from (name for name in dict.fromkeys(names) if name in metrics)


def number(value: float | None) -> str:
    """Return a metric in four decimals, as Keras does; of another size with an exponent."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"


def clock(seconds: float) -> str:
    """Return a time as ``h:mm:ss``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def time_left(first: Json, report: Json) -> str:
    """Return the time that is left by what two reports of progress say."""
    seconds, steps = report["time"] - first["time"], report["step"] - first["step"]
    return clock(seconds / steps * (report["total_steps"] - report["step"])) if steps > 0 else "?"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)
