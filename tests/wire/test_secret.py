"""Passwords: nothing shows them but the call that asks for them; a pickle opens in processes of one family only."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from schemaless.codec.envelope import DEFAULT_LIMITS
from schemaless.errors import InvalidInput
from schemaless.opening import Opening
from schemaless.wire.pool import PoolOptions
from schemaless.wire.secret import Secret, clear_locals
from schemaless.wire.urls import Credentials, parse_url

pytestmark = pytest.mark.once

WORD = "s3cret \u0436 word"


def test_secret_shows_nothing_but_what_reveal_gives() -> None:
    """Not as text, in a format, in a log, in a container, nor by an attribute that a debugger lists."""
    secret = Secret(WORD)
    record = logging.LogRecord("x", 20, "x", 1, "%s %r", (secret, secret), None)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{secret!r}", record.getMessage()]
    shown += [repr([secret]), repr({"password": secret}), repr(Credentials(password=secret))]

    assert secret.reveal() == WORD
    assert not hasattr(secret, "__dict__")
    assert [text for text in shown if "s3cret" in text] == []


def test_secret_is_compared_by_what_it_holds() -> None:
    """Two of the same word are one account; a text is no secret."""
    assert Secret(WORD) == Secret(WORD)
    assert Secret(WORD) != Secret("other")
    assert Secret(WORD) != WORD
    assert len({Secret(WORD), Secret(WORD), Secret("other")}) == 2
    assert copy.deepcopy(Secret(WORD)) == Secret(WORD)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pickled_secret_opens_in_processes_that_this_one_starts(method: str) -> None:
    """Workers get it, however they are started, and the bytes on the way do not show it."""
    opening = Opening(parse_url(f"mysql://app:{WORD}@db-1/mezzanine"), PoolOptions(), DEFAULT_LIMITS)
    pickled = pickle.dumps(opening)
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        word = pool.submit(_word_of, pickled).result(timeout=60)

    assert word == WORD
    assert b"s3cret" not in pickled
    assert pickle.loads(pickled) == opening
    assert pickle.dumps(opening) != pickled


def _word_of(pickled: bytes) -> str:
    password = pickle.loads(pickled).url.credentials.password
    assert isinstance(password, Secret)
    return password.reveal()


@pytest.mark.parametrize("variable", [None, "of that machine"])
def test_pickled_secret_elsewhere_is_that_machines_own(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    """A process that was not started by this one cannot open it; there, the environment has the password, or none."""
    pickled = pickle.dumps(Secret(WORD))
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"authkey": b"another family"})
    monkeypatch.delenv("SCHEMALESS_PASSWORD", raising=False)
    if variable is not None:
        monkeypatch.setenv("SCHEMALESS_PASSWORD", variable)
    found = pickle.loads(pickled)

    if variable is not None:
        assert found.reveal() == variable
    else:
        with pytest.raises(InvalidInput, match="set SCHEMALESS_PASSWORD where this one runs"):
            found.reveal()
        assert pickle.loads(pickle.dumps(found)) == found


def test_clear_locals_leaves_those_of_the_application() -> None:
    """What the application had in its variables stays for its debugger."""

    def fails() -> None:
        mine = WORD
        raise ValueError(len(mine))

    with pytest.raises(ValueError, match="13") as caught:
        fails()
    clear_locals(caught.value)

    assert caught.value.__traceback__ is not None
    assert caught.value.__traceback__.tb_next is not None
    assert caught.value.__traceback__.tb_next.tb_frame.f_locals["mine"] == WORD
