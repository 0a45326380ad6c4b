"""Each case of the corpus against commands that read such a thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.hostile import checkpoints, configs, data, folders, here, names, nasty, sound, sweeps
from tests.hostile import commands as typed
from tests.hostile.harness import SECRET_VALUE, Case, Commands, Listener, Place, problems

#: Each has a table of cases, of which every n-th is in the default suite.
MODULES = {
    sound: 1,
    configs: 12,
    names: 16,
    folders: 44,
    sweeps: 30,
    checkpoints: 16,
    here: 8,
    data: 18,
    nasty: 16,
}
CASES = [case for module in MODULES for case in module.CASES]


def _parameters() -> list[Any]:
    """Return each case with every other of its commands, those in turn.

    The default suite has some of the cases, each with one of its commands.
    """
    found = []
    for module, stride in MODULES.items():
        for number, case in enumerate(module.CASES):
            kept = case.kept or (number % stride == 0 and not case.slow)
            for position, command in enumerate(case.commands):
                marks = [pytest.mark.skip(reason=case.skip)] if case.skip else []
                if not kept or (position != number // stride % len(case.commands) and stride > 1):
                    if position % 2 != number % 2 and len(case.commands) > 1:
                        continue
                    marks.append(pytest.mark.faults)
                found.append(pytest.param(case, command, id=f"{case.name}-{command}", marks=marks))
    return found


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})


@pytest.mark.parametrize(("case", "command"), _parameters())
def test_case(
    case: Case, command: str, place: Place, commands: Commands, listener: Listener,
    alive: Callable[[], bool],
) -> None:  # fmt: skip
    case.build(place)
    before = place.snapshot()
    one = typed.ALL[command]
    run = commands.fresh if one.fresh else commands
    ended = run(
        *one.command.split(), *one.arguments(place), cwd=place.work, environment=place.environment()
    )
    codes = case.exits.get(command, case.codes)
    found = [*problems(place, ended, case, codes, before, place.snapshot(), one.mine)]
    if SECRET_VALUE.encode() in listener.received:
        found.append("sent the secret to the attacker's server")
        listener.received = b""
    if not alive():
        found.append("signalled another process")
    assert not found, f"{'; '.join(found)}\n{ended.output[-3000:]}"
