"""Secrets: only ``reveal`` shows them, and a pickle opens only in related processes."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from schemaless.codec.envelope import DEFAULT_LIMITS
from schemaless.errors import InvalidInput
from schemaless.store.opening import Opening
from schemaless.wire.pool import PoolOptions
from schemaless.wire.secret import Secret, clear_locals
from schemaless.wire.urls import Credentials, parse_url

pytestmark = [pytest.mark.once, pytest.mark.guarantee("passwords")]

WORD = "s3cret \u0436 word"


def test_secret_is_shown_by_reveal_only() -> None:
    """Not str, format, logging, containers, or an attribute that a debugger lists."""
    secret = Secret(WORD)
    record = logging.LogRecord("x", 20, "x", 1, "%s %r", (secret, secret), None)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{secret!r}", record.getMessage()]
    shown += [repr([secret]), repr({"password": secret}), repr(Credentials(password=secret))]

    assert secret.reveal() == WORD
    assert not hasattr(secret, "__dict__")
    assert [text for text in shown if "s3cret" in text] == []


def test_secrets_are_compared_by_value() -> None:
    """Equal passwords are equal secrets; a str is never equal to a secret."""
    assert Secret(WORD) == Secret(WORD)
    assert Secret(WORD) != Secret("other")
    assert Secret(WORD) != WORD
    assert len({Secret(WORD), Secret(WORD), Secret("other")}) == 2
    assert copy.deepcopy(Secret(WORD)) == Secret(WORD)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pickled_secret_opens_in_child_processes(method: str) -> None:
    """Worker processes get it with every start method, and the pickle does not contain it."""
    opening = Opening(parse_url(f"mysql://app:{WORD}@db-1/mezzanine"), PoolOptions(), DEFAULT_LIMITS)
    pickled = pickle.dumps(opening)
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        word = pool.submit(_word_of, pickled).result(timeout=120)

    assert word == WORD
    assert b"s3cret" not in pickled
    assert pickle.loads(pickled) == opening
    assert pickle.dumps(opening) != pickled


def _word_of(pickled: bytes) -> str:
    password = pickle.loads(pickled).url.credentials.password
    assert isinstance(password, Secret)
    return password.reveal()


@pytest.mark.parametrize("variable", [None, "of that machine"])
def test_pickled_secret_in_another_process_family_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    """An unrelated process cannot open it and reads the password from its environment, if set."""
    pickled = pickle.dumps(Secret(WORD))
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"authkey": b"another family"})
    monkeypatch.delenv("SCHEMALESS_PASSWORD", raising=False)
    if variable is not None:
        monkeypatch.setenv("SCHEMALESS_PASSWORD", variable)
    found = pickle.loads(pickled)

    if variable is not None:
        assert found.reveal() == variable
    else:
        with pytest.raises(InvalidInput, match="set SCHEMALESS_PASSWORD in the environment of this one"):
            found.reveal()
        assert pickle.loads(pickle.dumps(found)) == found


def test_clear_locals_keeps_those_of_the_application() -> None:
    """The application's local variables stay available to its debugger."""

    def fails() -> None:
        mine = WORD
        raise ValueError(len(mine))

    with pytest.raises(ValueError, match="13") as caught:
        fails()
    clear_locals(caught.value)

    assert caught.value.__traceback__ is not None
    assert caught.value.__traceback__.tb_next is not None
    assert caught.value.__traceback__.tb_next.tb_frame.f_locals["mine"] == WORD
