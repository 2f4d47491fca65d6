"""What a trigger may be declared as, and how it is named on the command line."""

from __future__ import annotations

import asyncio
import gc
import importlib
import re
import sys
from functools import partial, wraps

import pytest

import schemaless
from schemaless.errors import InvalidInput
from schemaless.store.triggers.declaration import import_trigger
from tests.cli.conftest import invoke  # noqa: F401 - the fixture


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "a b"}, "name must be 1 to 64"),
        ({"start": "now"}, "start must be"),
        ({"attempts": 0}, "attempts must be an integer of at least 1"),
        ({"parked_limit": -1}, "parked_limit must be an integer of at least 0"),
        ({"timeout_s": 0}, "timeout_s must be a number of seconds"),
    ],
)
def test_a_trigger_that_cannot_be_is_refused_when_it_is_declared(options, complaint):
    """Before anything is run."""
    with pytest.raises(InvalidInput, match=complaint):
        schemaless.trigger(**{"column": "BASE", "name": "one", **options})(lambda cell, call: None)


async def _coroutine(cell, call): ...


def _generator(cell, call):
    yield


async def _async_generator(cell, call):
    yield


class _Awaited:
    """An object that is called like a function."""

    async def __call__(self, cell, call): ...

    async def method(self, cell, call): ...


@pytest.mark.once
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (_coroutine, "an 'async def' function"),
        (_generator, "a generator"),
        (_async_generator, "an 'async def' function"),
        (partial(partial(_coroutine), call=None), "an 'async def' function"),
        (_Awaited(), "an 'async def' function"),
        (partial(_Awaited()), "an 'async def' function"),
        (_Awaited().method, "an 'async def' function"),
        (17, "17"),
    ],
)
def test_functions_whose_calls_would_run_nothing_are_refused(function, kind):
    """As the function and as on_erase, whatever wraps them."""
    with pytest.raises(InvalidInput, match=f"trigger one: the function must be a plain function, got {kind}"):
        schemaless.trigger(column="BASE", name="one")(function)
    with pytest.raises(InvalidInput, match=f"trigger one: on_erase must be a plain function, got {kind}"):
        schemaless.trigger(column="BASE", name="one", on_erase=function)(lambda cell, call: None)


@pytest.mark.once
@pytest.mark.parametrize("function", [_coroutine, _generator, _async_generator, partial(_Awaited())])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning", "error::RuntimeWarning")
def test_calls_that_return_what_nothing_runs_are_failures(function):
    """A wrapper hides what it wraps until it is called; its coroutine is closed."""
    wrapped = schemaless.trigger(column="BASE", name="one", on_erase=lambda *given: function(*given))(
        lambda *given: function(*given)
    )
    for call in (wrapped, wrapped.erased):
        with pytest.raises(InvalidInput, match=r"the function returned a (coroutine|generator|async_generator), which"):
            call(None, None)
    gc.collect()


@pytest.mark.once
def test_a_wrapper_that_runs_its_coroutine_is_a_plain_function():
    """Although functools.wraps makes it look like what it wraps; so is an object without a name."""

    @wraps(_coroutine)
    def runs(cell, call):
        return asyncio.run(_coroutine(cell, call))

    assert schemaless.trigger(column="BASE")(runs)(None, None) is None
    with pytest.raises(InvalidInput, match="pass one with name="):
        schemaless.trigger(column="BASE")(partial(runs))


@pytest.mark.once
def test_import_trigger_names_what_is_wrong(tmp_path, monkeypatch):
    """A module that is not there, or cannot be imported; a name that is no trigger."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_triggers.py").write_text(
        "import schemaless\n@schemaless.trigger(column='BASE')\ndef one(cell, call): ...\ndef two(cell, call): ...\n"
    )

    assert import_trigger("of_triggers:one").column == "BASE"
    for target, complaint in (
        ("of_triggers", "is named MODULE:NAME"),
        (
            "no_such_module:one",
            "cannot import 'no_such_module' from .*; run the command in the folder of the module, and leave out '.py'$",
        ),
        ("of_triggers:two", "has no trigger 'two'; its triggers: one"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            import_trigger(target)


@pytest.mark.once
@pytest.mark.parametrize(
    "target", ["../x:y", ".x:y", "..:y", "x.:y", "a/x:y", "x.py/:y", "x :y", "x\0:y", ":y", "x:", "1x:y"]
)
def test_a_module_is_no_path(tmp_path, monkeypatch, target):
    """Neither is it relative to a package: there is none."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="MODULE:NAME, such as billing:bill_rider"):
        import_trigger(target)


@pytest.mark.once
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(5)", r"'of_faults' raised SystemExit\(5\) while it was imported"),
        ("raise SystemExit", r"'of_faults' raised SystemExit\(\) while it was imported"),
        (
            "class Own(BaseException): ...\nraise Own(5)",
            r"cannot import 'of_faults' from .*: Own: 5 \(.*of_faults.py, line 2\)",
        ),
        ("x = 1\nx.y", r"cannot import 'of_faults' from .*: AttributeError: .* \(.*of_faults.py, line 2\)"),
        ("def (", r"cannot import 'of_faults' from .*: SyntaxError: .*\(of_faults.py, line 1\)$"),
        ("import no_such_module_at_all", "cannot import 'of_faults' from .*: No module named 'no_such_module_at_all'"),
    ],
)
def test_a_module_that_ends_while_it_is_imported_is_named(tmp_path, monkeypatch, invoke, text, said):  # noqa: F811
    """One line and exit 2, whatever it raises."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "of_faults", raising=False)
    (tmp_path / "of_faults.py").write_text(text)
    importlib.invalidate_caches()
    with pytest.raises(InvalidInput, match=said):
        import_trigger("of_faults:one")
    result = invoke("trigger", "run", "of_faults:one", "--url", "mysql://u@nowhere.invalid/trips")

    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert re.search(said, result.err.strip())


@pytest.mark.once
def test_an_interrupt_while_a_module_is_imported_is_one(tmp_path, monkeypatch, invoke):  # noqa: F811
    """Ctrl-C within a __set_name__ of the module is not its fault."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "of_interrupts", raising=False)
    (tmp_path / "of_interrupts.py").write_text(
        "class Named:\n    def __set_name__(self, owner, name):\n        raise KeyboardInterrupt\n"
        "class Owner:\n    named = Named()\n"
    )
    importlib.invalidate_caches()
    result = invoke("trigger", "run", "of_interrupts:one", "--url", "mysql://u@nowhere.invalid/trips")

    assert (result.code, result.out) == (3, "")
    assert "schemaless: stopped; " in result.err
