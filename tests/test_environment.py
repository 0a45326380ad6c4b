from __future__ import annotations

import os
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from dtrain.config import private, targets
from dtrain.errors import UsageError
from dtrain.run import identity
from tests.test_schema import GIVEN, PRESETS, composed, node


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a test puts there is taken back, of whatever name.
    found = os.environ.copy()
    for name in [name for name in found if name.startswith("DTRAIN_SECRET_")]:
        del found[name]  # of a test before, whose command moved a secret there
    monkeypatch.setattr(os, "environ", found)
    os.environ["DTRAIN_ENV"] = "DATA, N, HF_TOKEN, PIN, PW, LOGIN_SECRET"


def written(config: Any) -> Any:
    return OmegaConf.to_container(config, resolve=False, enum_to_str=True)


def resolved(text: str) -> Any:
    config = OmegaConf.create(text)
    private.resolve(config)
    return config


def test_what_is_no_secret_becomes_its_value() -> None:
    os.environ.update(DATA="/data", N="7")
    config = resolved(
        "{a: '${oc.env:DATA}', b: '${oc.env:DATA}/x', c: '${b}', n: '${oc.decode:${oc.env:N}}',"
        " d: '${n}', e: '${oc.env:ABSENT,here}', f: {g: '${a}'}, h: ['${oc.env:DATA}'],"
        " i: '${oc.env:ABSENT,null}'}"
    )
    assert written(config) == {
        "a": "/data", "b": "/data/x", "c": "/data/x", "n": 7, "d": 7, "e": "here",
        "f": {"g": "/data"}, "h": ["/data"], "i": None,
    }  # fmt: skip
    assert not [name for name in os.environ if name.startswith("DTRAIN_SECRET_")]


def test_a_secret_of_the_environment_stays_there() -> None:
    os.environ.update(HF_TOKEN="s3cr3t", PIN="1234", PW="pwpw", LOGIN_SECRET="{user: me, k: s3}")
    config = resolved(
        "{a: '${oc.env:HF_TOKEN}', b: 'https://host/${oc.env:HF_TOKEN}/x', c: '${b}',"
        " password: '${oc.env:PIN}', again: '${password}',"
        " pin: {password: '${oc.decode:${oc.env:PIN}}'},"
        " uri: 'http://me:${oc.env:PW}@host', same: '${uri}',"
        " login: '${oc.create:${oc.decode:${oc.env:LOGIN_SECRET}}}', far: '${oc.env:${which}}',"
        " which: HF_TOKEN, plain: 'no s3cr3t', dataset: {_target_: dtrain.s3cr3t}}"
    )
    text = OmegaConf.to_yaml(config)
    assert written(config) == {
        "a": "${oc.env:HF_TOKEN}", "b": "https://host/${oc.env:HF_TOKEN}/x",
        "c": "https://host/${oc.env:HF_TOKEN}/x", "password": "${oc.env:PIN}",
        "again": "${oc.env:PIN}", "pin": {"password": "${oc.decode:${oc.env:PIN}}"},
        "uri": "http://me:${oc.env:PW}@host", "same": "http://me:${oc.env:PW}@host",
        "login": "${oc.create:${oc.decode:${oc.env:LOGIN_SECRET}}}", "far": "${oc.env:HF_TOKEN}",
        "which": "HF_TOKEN", "plain": "no s3cr3t", "dataset": {"_target_": "dtrain.s3cr3t"},
    }  # fmt: skip
    assert config.c == "https://host/s3cr3t/x"
    assert (config.pin.password, config.login.user) == (1234, "me")
    again = OmegaConf.create(text)  # as a task reads it
    assert targets.plain(again) == targets.plain(config)


def test_what_was_typed_moves_to_the_environment() -> None:
    config = resolved(
        "{dataset: {api_key: abc, password: 12, token: null, tokens: 5, other: abc},"
        " uri: 'http://me:pw@host/?token=t&x=1', list: [{secret: s}], same: '${dataset.api_key}'}"
    )
    assert written(config) == {
        "dataset": {
            "api_key": "${oc.env:DTRAIN_SECRET_DATASET_API_KEY}",
            "password": "${oc.decode:${oc.env:DTRAIN_SECRET_DATASET_PASSWORD}}",
            "token": None, "tokens": 5, "other": "abc",
        },
        "uri": "http://me:${oc.env:DTRAIN_SECRET_URI_}@host/?token=${oc.env:DTRAIN_SECRET_URI}&x=1",
        "list": [{"secret": "${oc.env:DTRAIN_SECRET_LIST_0_SECRET}"}],
        "same": "abc",
    }  # fmt: skip
    assert (config.dataset.api_key, config.dataset.password) == ("abc", 12)
    assert config.uri == "http://me:pw@host/?token=t&x=1"


def test_two_jobs_of_one_process_may_have_two_secrets() -> None:
    one, two = resolved("{password: a}"), resolved("{password: b}")
    assert (one.password, two.password) == ("a", "b")


@pytest.mark.parametrize("preset", PRESETS)
def test_no_key_of_ours_is_named_like_a_secret(preset: str) -> None:
    config = node(preset, *GIVEN.get(preset, []))
    private.resolve(config)
    assert written(config) == targets.plain(config)


SECRET = "${oc.env:DTRAIN_SECRET_%s}"
#: Words with a secret in them, and as they may be written; others stay as they are.
WORDS = {
    "+dataset.api_key=s3cr3t": "+dataset.api_key=" + SECRET % "DATASET_API_KEY",
    "tracking.uri=http://me:s3cr3t@host:1/":
        f"tracking.uri=http://me:{SECRET % 'TRACKING_URI'}@host:1/",
    "trainer.callbacks=[{_target_:a.B,token:s3cr3t,n:1}]":
        f"trainer.callbacks=[{{_target_:a.B,token:{SECRET % 'TRAINER_CALLBACKS_0_TOKEN'},n:1}}]",
    "+model.password='s3cr3t'": "+model.password=" + SECRET % "MODEL_PASSWORD",
    **{word: word for word in ("seed=3", "strategy=mirrored", "~dataset.cache",
                               "optimizer/schedule=cosine", "model=custom")},
    # What is no secret has its value there, where that is one word.
    "dataset.path=${oc.env:DATA}/x": "dataset.path=/data/x",
    "dataset.uri=http://me:${oc.env:PW}@${oc.env:DATA}": "dataset.uri=http://me:${oc.env:PW}@/data",
    **{word: word for word in ("name=${oc.env:N}", "model.a=${oc.env:HF_TOKEN}",
                               "+dataset.password=${oc.env:DATA}", "model.b=${oc.env:DATA,x}")},
}  # fmt: skip


def test_words_that_may_be_written() -> None:
    os.environ.update(DATA="/data", N="two words", HF_TOKEN="s3cr3t", PW="pwpw")
    config = resolved(
        "{dataset: {api_key: s3cr3t}, tracking: {uri: 'http://me:s3cr3t@host:1/'},"
        " trainer: {callbacks: [{_target_: a.B, token: s3cr3t, n: 1}]},"
        " model: {password: s3cr3t}, seed: 3}"
    )
    words = private.as_written([*WORDS], config)
    assert words == [*WORDS.values()]
    OverridesParser.create().parse_overrides(words)  # as a resume does


@pytest.mark.parametrize("quote", ["'", '"'])
def test_an_address_stays_in_its_quotes(quote: str) -> None:
    config = resolved("{dataset: {path: 'http://h/x?v=it[1]&token=s3cr3t'}}")
    word = f"dataset.path={quote}http://h/x?v=it[1]&token=s3cr3t{quote}"
    [written] = private.as_written([word], config)
    assert written == word.replace("s3cr3t", "${oc.env:DTRAIN_SECRET_DATASET_PATH}")
    [parsed] = OverridesParser.create().parse_overrides([written])
    assert str(parsed.value()) == "http://h/x?v=it[1]&token=${oc.env:DTRAIN_SECRET_DATASET_PATH}"


def test_a_word_with_escapes_has_to_be_given_again() -> None:
    config = resolved('{dataset: {login: {password: "it\'s"}}}')
    words = private.as_written([r"+dataset.login={password:'it\'s'}"], config)
    assert words == ["+dataset.login=???"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${oc.env:DTRAIN_SECRET_A_PASSWORD}",
         r"=\*\*\*: it is a secret, which the run folder.*hint: DTRAIN_SECRET_A_PASSWORD=VALUE in"),
        ("${oc.env:MINE}", r"=\*\*\*: the environment has no variable MINE.*hint: MINE=VALUE in"),
        *((text, "=.*: asks for the variable HOME of your.*DTRAIN_ENV=HOME in front of the command")
          for text in ("${oc.env:HOME}", "${oc.env: 'HOME'}", "${oc.env:HOME,x}")),
    ],
)  # fmt: skip
def test_a_reference_to_nothing_that_may_be_read(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=rf"^a\.password{said}"):
        resolved(f'{{a: {{password: "{text}"}}}}')


def test_another_password_makes_no_other_run() -> None:
    words = ("token=a", "token=b", "y=b")
    one, two, none = (composed("dataset=digits", f"+dataset.x_{word}") for word in words)
    assert identity.config_hash(one) == identity.config_hash(two) != identity.config_hash(none)
