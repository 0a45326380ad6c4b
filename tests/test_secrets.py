from __future__ import annotations

import pytest

from dtrain import secrets


def test_what_is_named_like_a_secret() -> None:
    for key in (
        "password", "dataset.password", "dataset.db_password", "model.apiKey", "a.api_key",
        "API_KEY", "MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "dataset.token",
        "HF_TOKEN", "hub.access-token", "credentials.user", "dataset.client_secret",
        "AZURE_STORAGE_CONNECTION_STRING", "dataset.account_key", "private_key_path",
    ):  # fmt: skip
        assert secrets.named(key), key
    for key in (
        "tokens", "max_tokens", "model.tokens_per_batch", "TiedEmbedding", "model.token_dim",
        "dataset.pad_token", "mask_token", "oovToken", "key", "key_dim", "model.keys",
        "model.num_token", "n_token", "numToken", "next_token", "special_token", "max_token",
        "tokenizer", "secretary", "compass", "passes", "PWD", "trainer.batch_size", "author",
    ):  # fmt: skip
        assert not secrets.named(key), key


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("http://me:s3cr3t@host:5000/x", "http://me:***@host:5000/x"),
        ("http://me:p@ss@host", "http://me:***@host"),
        ("https://s3cr3t@host", "https://***@host"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql+psycopg2://me:x@host/db?password=y&a=b", 
         "postgresql+psycopg2://me:***@host/db?password=***&a=b"),
        ("https://host/x?sig=abc&page=2", "https://host/x?sig=***&page=2"),
        ("http://host:5000 and me@host", "http://host:5000 and me@host"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
    ],
)  # fmt: skip
def test_passwords_of_addresses(text: str, masked: str) -> None:
    assert secrets.mask(text) == masked
    assert secrets.mask(f"API request to {text} failed") == f"API request to {masked} failed"


def test_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "0123456789")
    monkeypatch.setenv("OTHER_TOKEN", "true")  # too short to be looked for
    monkeypatch.setenv("MY_PATH", "/data")
    assert secrets.mask("0123456789 is not true of /data") == "*** is not true of /data"


def test_hidden_values() -> None:
    node = {
        "password": "a", "pin": 1, "list": [{"api_key": 7, "x": "y"}], "secret": None,
        "credentials": {"user": "me", "keys": ["b", True]},
    }  # fmt: skip
    hidden = {"api_key": "***", "x": "y"}, {"user": "***", "keys": ["***", True]}
    changed = {"password": "***", "list": [hidden[0]], "credentials": hidden[1]}
    assert secrets.hide(node) == {**node, **changed}
    assert secrets.hide("a", "model.password") == "***"


def test_a_number_at_token_is_one_of_a_vocabulary() -> None:
    node = {"image_token": 3, "token": 4.5, "my_token": "x", "secret_token": 5, "pin": 6}
    assert secrets.hide(node) == {**node, "my_token": "***", "secret_token": "***"}
    assert secrets.hide({"credentials": {"token": 7}}) == {"credentials": {"token": "***"}}
