from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from dtrain import identity, targets
from dtrain.controller import private, schema
from dtrain.errors import UsageError
from tests.test_schema import GIVEN, PRESETS, composed


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a test puts there is taken back, of whatever name.
    monkeypatch.setattr(os, "environ", os.environ.copy())


def resolved(text: str) -> Any:
    config = OmegaConf.create(text)
    private.resolve(config)
    return config


def test_what_comes_from_the_environment_stays_there() -> None:
    os.environ.update(DATA="/somewhere", N="7")
    config = resolved(
        "{a: '${oc.env:DATA}', b: '${oc.env:DATA}/x', c: '${b}', n: '${oc.decode:${oc.env:N}}',"
        " d: '${n}', e: '${oc.env:ABSENT,here}', f: {g: '${a}'}, h: ['${oc.env:DATA}']}"
    )
    text = OmegaConf.to_yaml(config)
    assert "/somewhere" not in text
    assert config.a == config.f.g == config.h[0] == "/somewhere"
    assert config.b == config.c == "/somewhere/x"
    assert (config.n, config.d, config.e) == (7, 7, "here")
    assert private.written(config)["b"] == "${oc.env:DATA}/x"
    assert private.written(config)["c"] == "${oc.env:DTRAIN_SECRET_C}"
    again = OmegaConf.create(text)  # as a task reads it
    assert targets.plain(again) == targets.plain(config)


def test_what_was_typed_moves_to_the_environment() -> None:
    config = resolved(
        "{dataset: {api_key: abc, password: 12, token: null, tokens: 5, other: abc},"
        " uri: 'http://me:pw@host/?token=t&x=1', list: [{secret: s}], same: '${dataset.api_key}'}"
    )
    assert private.written(config) == {
        "dataset": {
            "api_key": "${oc.env:DTRAIN_SECRET_DATASET_API_KEY}",
            "password": "${oc.decode:${oc.env:DTRAIN_SECRET_DATASET_PASSWORD}}",
            "token": None, "tokens": 5, "other": "abc",
        },
        "uri": "http://me:${oc.env:DTRAIN_SECRET_URI_}@host/?token=${oc.env:DTRAIN_SECRET_URI}&x=1",
        "list": [{"secret": "${oc.env:DTRAIN_SECRET_LIST_0_SECRET}"}],
        "same": "abc",
    }  # fmt: skip
    assert config.dataset.api_key == "abc"
    assert config.dataset.password == 12
    assert config.uri == "http://me:pw@host/?token=t&x=1"


def test_two_jobs_of_one_process_may_have_two_secrets() -> None:
    one = resolved("{password: a}")
    two = resolved("{password: b}")
    assert (one.password, two.password) == ("a", "b")


@pytest.mark.parametrize("preset", PRESETS)
def test_no_key_of_ours_is_named_like_a_secret(preset: str) -> None:
    config = composed(preset, *GIVEN.get(preset, []))
    private.resolve(config)
    assert private.written(config) == targets.plain(config)


WORDS = (
    "+dataset.api_key=s3cr3t", "tracking.uri=http://me:s3cr3t@host:1/",
    "'trainer.callbacks=[{_target_:a.B,token:s3cr3t,n:1}]'".strip("'"),
    "+model.password='s3cr3t'", "seed=3", "strategy=mirrored", "~dataset.cache",
    "optimizer/schedule=cosine", "model=custom",
)  # fmt: skip


def test_words_that_may_be_written() -> None:
    config = resolved(
        "{dataset: {api_key: s3cr3t}, tracking: {uri: 'http://me:s3cr3t@host:1/'},"
        " trainer: {callbacks: [{_target_: a.B, token: s3cr3t, n: 1}]},"
        " model: {password: s3cr3t}, seed: 3}"
    )
    words = private.words(list(WORDS), config)
    assert words == [
        "+dataset.api_key=${oc.env:DTRAIN_SECRET_DATASET_API_KEY}",
        "tracking.uri=http://me:${oc.env:DTRAIN_SECRET_TRACKING_URI}@host:1/",
        "trainer.callbacks=[{_target_:a.B,token:${oc.env:DTRAIN_SECRET_TRAINER_CALLBACKS_0_TOKEN},n:1}]",
        "+model.password=${oc.env:DTRAIN_SECRET_MODEL_PASSWORD}",
        "seed=3", "strategy=mirrored", "~dataset.cache", "optimizer/schedule=cosine",
        "model=custom",
    ]  # fmt: skip
    OverridesParser.create().parse_overrides(words)  # as a resume does
    assert config.seed == 3


def test_a_word_with_escapes_has_to_be_given_again() -> None:
    config = resolved('{dataset: {login: {password: "it\'s"}}}')
    assert private.words([r"+dataset.login={password:'it\'s'}"], config) == ["+dataset.login=???"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("DTRAIN_SECRET_A_PASSWORD", "it is a secret, which the run folder does not hold"),
        ("MINE", "the environment has no variable MINE"),
    ],
)
def test_a_reference_to_nothing(name: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(f"{{a: {{password: '${{oc.env:{name}}}'}}}}")
    assert str(caught.value) == (
        f"a.password=***: {problem}; accepted: the value, given anew; "
        f"type: {name}=VALUE in front of the command"
    )


def test_another_password_makes_no_other_run(tmp_path: Path) -> None:
    schema.register()
    one, two, none = (composed("dataset=digits", f"+dataset.x_{k}={v}") for k, v in
                      (("token", "a"), ("token", "b"), ("y", "b")))  # fmt: skip
    assert identity.config_hash(one) == identity.config_hash(two) != identity.config_hash(none)
