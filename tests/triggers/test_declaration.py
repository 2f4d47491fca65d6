"""What a trigger may be declared as, and how it is named on the command line."""

from __future__ import annotations

import pytest

import schemaless
from schemaless.errors import InvalidInput
from schemaless.triggers.declaration import import_trigger


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "a b"}, "name is 1 to 64"),
        ({"start": "now"}, "start must be"),
        ({"attempts": 0}, "attempts must be a number from 1"),
        ({"parked_limit": -1}, "parked_limit must be a number from 0"),
        ({"timeout_s": 0}, "timeout_s must be seconds"),
    ],
)
def test_a_trigger_that_cannot_be_is_refused_when_it_is_declared(options, complaint):
    """Before anything is run."""
    with pytest.raises(InvalidInput, match=complaint):
        schemaless.trigger(**{"column": "BASE", "name": "one", **options})(lambda cell, call: None)


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
        ("no_such_module:one", "cannot import 'no_such_module'"),
        ("of_triggers:two", "has no trigger 'two'; its triggers: one"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            import_trigger(target)
