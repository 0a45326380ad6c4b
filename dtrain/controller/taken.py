"""What a command takes over of what was measured (:mod:`.tuned`), and what a run keeps of that.

``hardware=tuned`` takes over all, or is refused; a key that is ``auto`` its own value, or else has
the default.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dtrain.config import load, switches
from dtrain.config.overrides import key_of, parse
from dtrain.config.schema import Config, Hardware
from dtrain.controller import tuned
from dtrain.controller.folders import read_command
from dtrain.controller.launchers import automatic
from dtrain.errors import UsageError
from dtrain.files import fields
from dtrain.run.folder import RunDir

#: Keys that may be ``auto``.
SWITCHES = tuple(f"hardware.{name}" for name in switches.names(Hardware))
#: Values as they are typed that are no numbers and no names.
_WORDS = {"true": True, "false": False, "null": None}
#: Launchers whose tasks run on other machines.
_ELSEWHERE = ("slurm", "k8s", "ssh", "ray")
#: Keys of overrides that are none of a measurement.
_OF_A_RUN = ("hardware", "resume", "fork", "dry_run", "tracking", "output_dir", "name")


class Choice(NamedTuple):
    """What a command leaves to what was measured.

    Attributes:
        whole: ``hardware=tuned`` is chosen: nothing else will do.
        keys: whose values are taken over, in the order of :data:`.tuned.KEYS`.
        launcher: the option of the group.
    """

    whole: bool
    keys: list[str]
    launcher: str | None


def choice(
    config: Config, node: Any, overrides: Sequence[str], choices: Mapping[str, str | None]
) -> Choice:
    """Return what is to be taken over: of ``hardware=tuned`` all that no override names.

    Args:
        config: settled.
        node: what it was settled from, where a key may be ``auto``.
        overrides: of the command and of the run that it resumes.
        choices: the option of each group.
    """
    found = {
        key for key in SWITCHES if node["hardware"].get(key.partition(".")[2]) == switches.AUTO
    }
    whole = choices.get("hardware") == tuned.OPTION
    if whole:
        named = {key_of(override) for override in overrides}
        found |= {key for key in tuned.KEYS if key not in named and _has(config, key)}
    return Choice(whole, [key for key in tuned.KEYS if key in found], choices.get("launcher"))


def use(
    config: Config, chosen: Choice, overrides: Sequence[str], say: Callable[[str], None]
) -> list[str]:
    """Take over what was measured, as far as the command leaves it to that.

    What is taken over is returned as overrides, which a run keeps with its own: it is resumed,
    forked and evaluated with them, whatever is measured later.

    Args:
        config: settled; is changed.
        chosen: of the command.
        overrides: as of :func:`choice`.
        say: is given a line about the keys that are ``auto``, where there are any.

    Raises:
        UsageError: the file is damaged; of ``hardware=tuned`` there is none, or the tasks run
            elsewhere.
        OSError: it cannot be read.
    """
    if not chosen.keys:
        return []
    if chosen.whole:
        values = _measured(config, chosen, overrides)
    else:
        values = _or_default(config, chosen, say)
    tuned.put(config, values)
    return [f"{key}={tuned.typed(value)}" for key, value in values.items()]


def _measured(config: Config, chosen: Choice, overrides: Sequence[str]) -> dict[str, Any]:
    if chosen.launcher in _ELSEWHERE:
        raise UsageError(
            "hardware", tuned.OPTION, f"was measured on this machine, and launcher="
            f"{chosen.launcher} starts tasks on others", "launchers of this machine",
            "hardware=auto",
        )  # fmt: skip
    found = tuned.read(tuned.path_of(config))
    if found is None:
        words = [each for each in overrides if key_of(each) not in (*_OF_A_RUN, *chosen.keys)]
        raise UsageError(
            "hardware", tuned.OPTION, "nothing was measured yet for this model, data, strategy and "
            "batch with these versions on this machine", "what python -m dtrain tune has measured",
            " ".join(["python -m dtrain tune", *map(shlex.quote, words)]),
        )  # fmt: skip
    return {key: found[key] for key in chosen.keys}


def _or_default(config: Config, chosen: Choice, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the values of keys that are ``auto``, and say whether they were measured."""
    values = {key: load.select(config, key) for key in chosen.keys}
    found, why = None, _elsewhere(chosen.launcher)
    if why is None:
        found = tuned.read(tuned.path_of(config))
        why = _unlike(config, chosen, found)
    if found is not None and why is None:
        values = {key: found[key] for key in chosen.keys}
    text = ", ".join(f"{key}={tuned.typed(value)}" for key, value in values.items())
    say(f"{text} (auto): " + (f"the default: {why}" if why else "as python -m dtrain tune found"))
    return values


def _unlike(config: Config, chosen: Choice, found: Mapping[str, Any] | None) -> str | None:
    """Return why what was measured is not to be used by parts; None where it may be.

    What decides numbers was measured together: that one part of it keeps them was not.
    """
    if found is None:
        return "nothing was measured; with the same overrides: python -m dtrain tune"
    for key in (tuned.PRECISION, *SWITCHES):
        own = load.select(config, key)
        if key not in chosen.keys and found[key] != own:
            return (
                f"{key}={tuned.typed(found[key])} was measured with it, and here it is "
                f"{tuned.typed(own)}; hardware=tuned takes all"
            )
    return None


def _elsewhere(launcher: str | None) -> str | None:
    """Return why what was measured on this machine says nothing of the tasks of a launcher.

    Each host of a cluster may have a file of its own: the commands there have to agree.
    """
    platform = automatic.found() if launcher == "auto" else None
    if launcher not in (*_ELSEWHERE, "env") and (platform is None or platform[1].is_alone):
        return None
    return f"launcher={launcher} is for several machines, and python -m dtrain tune measures one"


def parted(overrides: Sequence[str], keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that a run has kept as they were typed, and what it took over.

    Args:
        overrides: of its ``command.json``, or of a job of a sweep.
        keys: of :class:`Choice`; what is taken over stands at the end.
    """
    first = len(overrides) - len(keys)
    if first < 0 or [key_of(each) for each in overrides[first:]] != list(keys):
        return list(overrides), []
    return list(overrides[:first]), list(overrides[first:])


def again(config: Config, taken: Sequence[str], path: Path) -> list[str]:
    """Take over what an earlier command took, whatever was measured since, and return it.

    Args:
        config: settled; is changed.
        taken: of :func:`parted`.
        path: of the file that has them, for messages.

    Raises:
        DamagedFile: one of them is no value of its key.
    """
    values = {}
    for override in taken:
        key, text = key_of(override), parse(override).value or ""
        value: Any = int(text) if text.isdecimal() and len(text) < 10 else text
        values[key] = value = _WORDS.get(text, value)
        fields.check(value, tuned.Values.__annotations__[key], path, key)
    tuned.put(config, values)
    return list(taken)


def of_run(config: Config, keys: Sequence[str]) -> list[str]:
    """Take over what the run that is resumed took when it began, and return it.

    Args:
        config: settled, with ``resume``; is changed.
        keys: of :class:`Choice`.

    Raises:
        DamagedFile: its ``command.json`` is damaged.
    """
    rundir = RunDir(str(config.resume))
    past = read_command(rundir) or {"overrides": []}
    return again(config, parted(past["overrides"], keys)[1], rundir.command)


def _has(config: Config, key: str) -> bool:
    head, _, name = key.partition(".")
    return head != "dataset" or config.dataset.get(name) is not None
