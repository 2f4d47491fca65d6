"""The configuration file: names for datastores, where each setting is from, and what is said of a bad file."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import schemaless
from schemaless.topology.configuration import read_configuration
from schemaless.wire.secret import Secret

URL = "mysql://app@db-1:3306/mezzanine"
GOOD = f'default = "mezz"\n\n[datastores.mezz]\nurl = "{URL}"\npool_size = 3\nread_timeout_s = 7.5\n'


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    """The configuration file, not there yet; no password and no URL in the environment."""
    path = tmp_path / "folder" / "config.toml"
    path.parent.mkdir()
    monkeypatch.setenv("SCHEMALESS_CONFIG", str(path))
    monkeypatch.delenv("SCHEMALESS_PASSWORD", raising=False)
    return path


def write(file: Path, text: str, mode: int = 0o600) -> None:
    file.write_text(text)
    file.chmod(mode)


def shown(result) -> dict[str, tuple[object, str]]:
    assert result.code == 0, result.err
    return {each["setting"]: (each["value"], each["source"]) for each in result.json["settings"]}


@pytest.mark.once
def test_show_says_where_each_setting_is_from(invoke, file, monkeypatch):
    """The command line counts before the environment, and that before the file's default."""
    write(file, GOOD + '\n[datastores.other]\nurl = "mysql://x@db-2/other"\n')
    monkeypatch.setenv("SCHEMALESS_PASSWORD", "hush")

    settings = shown(invoke("config", "show", "--json"))
    assert settings == {
        "file": (str(file), "SCHEMALESS_CONFIG"),
        "datastore": ("mezz", f"{file}, line 1"),
        "url": ("mysql://app@db-1:3306/mezzanine", f"{file}, line 4"),
        "password": ("given", "SCHEMALESS_PASSWORD"),
        "connect_timeout_s": (10, "default"),
        "read_timeout_s": (7.5, f"{file}, line 6"),
        "write_timeout_s": (60, "default"),
        "pool_size": (3, f"{file}, line 5"),
    }
    assert shown(invoke("config", "show", "--json", url="other"))["datastore"] == ("other", "SCHEMALESS_URL")
    for arguments in (("-d", "other", "config", "show"), ("config", "show", "-d", "other")):
        assert shown(invoke(*arguments, "--json", url=URL))["datastore"] == ("other", "the command line")
    assert shown(invoke("config", "show", "--json", "--url", URL))["url"][1] == "the command line"
    assert shown(invoke("-d", "other", "config", "show", "-d", "mezz", "--json"))["datastore"][0] == "mezz"


@pytest.mark.once
def test_show_without_a_file_says_that_nothing_is_named(invoke, monkeypatch, tmp_path):
    """The usual place is that of the user's configuration."""
    monkeypatch.delenv("SCHEMALESS_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    settings = shown(invoke("config", "show", "--json"))
    assert settings["file"] == (str(tmp_path / "schemaless" / "config.toml"), "the usual place, not there")
    assert settings["datastore"][0] is None
    assert invoke("config", "path").out == f"{tmp_path / 'schemaless' / 'config.toml'}\n"
    assert "add it with: schemaless config add mezz mysql://" in invoke("-d", "mezz", "info").err


@pytest.mark.once
def test_add_makes_a_file_that_only_its_owner_reads(invoke, file):
    """What is added is read again; a name is given once, and what stood in the file stays."""
    assert invoke("config", "add", "mezz", URL, "--default").code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(file.read_text() + "# a remark")
    assert invoke("config", "add", "a-b", 'mysql://app@db-2/x?ssl_ca=/a"b').code == 0

    found = read_configuration()
    assert (found.default, sorted(found.datastores)) == ("mezz", ["a-b", "mezz"])
    assert found.datastores["a-b"].url == Secret('mysql://app@db-2/x?ssl_ca=/a"b')
    assert "# a remark\n" in file.read_text()
    before = file.read_bytes()
    for arguments, said in (
        (("mezz", URL), f"mezz is already defined in {file}, line 4"),
        (("other", URL, "--default"), "already has a default"),
        (("not a name", URL), "1 to 64 characters of"),
        (("other", "db-1"), "expected a URL"),
        (("other", "mysql://db-1/"), "names no datastore"),
    ):
        result = invoke("config", "add", *arguments)
        assert (result.code, said in result.err) == (2, True), result.err
    assert file.read_bytes() == before


@pytest.mark.once
def test_a_password_in_the_file_is_for_its_owner_alone(invoke, file):
    """A file that others may read is refused while it has one; config add closes it; nothing shows it."""
    write(file, GOOD, 0o644)
    assert shown(invoke("config", "show", "--json"))["password"][0] is None
    added = invoke("config", "add", "secret", "mysql://app:hush%40hush@db-2/x", "--json")
    assert added.code == 0
    assert "readable only by its owner" in added.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    for arguments in (("config", "show"), ("config", "show", "--json"), ("--traceback", "info", "--shards", "x")):
        result = invoke("-d", "secret", *arguments)
        assert "hush" not in result.out + result.err
    file.chmod(0o640)
    result = invoke("-d", "mezz", "info", "--traceback")
    assert result.code == 2
    assert "line 9: datastores.secret.url contains a password, and other users can read" in result.err
    assert "hush" not in result.err


@pytest.mark.once
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("default = x\n", "line 1, column 11: Invalid value"),
        ("x = 1", "line 1: x is not a setting; choose from default, datastores"),
        ('[datastore.a]\nurl = "x"', "line 1: datastore is not a setting; did you mean datastores?"),
        ("datastores = 1", "line 1: datastores must have a table per datastore"),
        ("[datastores]\na = 1", "line 2: datastores.a must be a table"),
        ("\n[datastores.a]\nurl = 1", 'line 3: datastores.a.url must be a URL: url = "mysql://'),
        ("[datastores.a]\npool_size = 4", "line 1: datastores.a.url must be a URL"),
        (
            GOOD.replace("pool_size", "pool_sise"),
            "line 5: datastores.mezz.pool_sise is not a setting; did you mean pool_size",
        ),
        (GOOD.replace("= 3", '= "3"'), "line 5: datastores.mezz.pool_size must be an integer of at least 1, got '3'"),
        (GOOD.replace("7.5", "-1"), "line 6: datastores.mezz.read_timeout_s must be a number of seconds"),
        (
            GOOD.replace('"mezz"', '"mess"'),
            "line 1: default must be one of the datastores in the file (mezz), got",
        ),
        (
            '[datastores."a b"]\nurl = "x"',
            "line 1: datastores.a b is not a valid name: a name in the configuration has 1 to 64",
        ),
    ],
)
def test_a_bad_file_is_told_with_its_line_and_key(invoke, file, text, said):
    """Exit 2, and one line that says where, what and what to do."""
    write(file, text)
    result = invoke("info")

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"schemaless: configuration {file}, ")
    assert said in result.err


@pytest.mark.once
def test_a_file_that_cannot_be_trusted_or_found_is_refused(invoke, file):
    """One that everybody may write to, one that is not there, and one that is no text."""
    assert f"SCHEMALESS_CONFIG names {file}, which does not exist" in invoke("info").err
    assert f"no file {file}, which SCHEMALESS_CONFIG names" in invoke("-d", "x", "info").err
    shown = invoke("config", "show")
    assert (shown.code, "SCHEMALESS_CONFIG, not there" in shown.out) == (0, True)
    assert invoke("grants", "--role", "admin", "--name", "x", "--shards", 1, "--cluster", "mysql://h/").code == 0
    write(file, GOOD, 0o602)
    assert "is world-writable" in invoke("info").err
    file.chmod(0o600)
    file.write_bytes(b"\xff")
    assert "is not UTF-8 text" in invoke("info").err
    write(file, GOOD)
    assert f"no datastore is named 'unlisted' in {file}; the file names mezz" in invoke("-d", "unlisted", "info").err


@pytest.mark.once
def test_a_file_may_begin_with_a_byte_order_mark(invoke, file):
    """Editors on Windows write one; commands read it, and add keeps the rest."""
    write(file, "\ufeff" + GOOD)
    assert invoke("config", "add", "other", "mysql://x@db-2/other").code == 0
    assert shown(invoke("config", "show", "--json"))["datastore"] == ("mezz", f"{file}, line 1")


@pytest.mark.once
def test_without_a_home_folder_the_error_says_what_to_set(invoke, monkeypatch):
    """In a container, HOME may be unset, and the user may not be in the passwd database."""
    for name in ("HOME", "XDG_CONFIG_HOME", "SCHEMALESS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)

    assert shown(invoke("config", "show", "--json", url=URL))["file"][0] is None
    assert invoke("config", "show", url=URL).code == 0
    for words in (
        "config path",
        "config show",
        "config show -d mezz",
        "info -d mezz",
        "config add mezz mysql://app@db-1/mezz",
        "info",
    ):
        result = invoke(*words.split())
        assert (result.code, "set SCHEMALESS_CONFIG to the path of the file" in result.err) == (2, True)
    for words in ("local status", "local down", "local up"):
        result = invoke(*words.split(), "--folder", "~/servers")
        assert (result.code, "cannot expand the ~ in ~/servers" in result.err) == (2, True)


@pytest.mark.mysql
def test_a_name_opens_the_datastore_with_its_settings(invoke, file, datastore_url, row):
    """The library and the command line take a name for a URL; what the call says counts before the file."""
    write(file, f'default = "mine"\n[datastores.mine]\nurl = "{datastore_url}"\npool_size = 3\n')
    assert invoke("cell", "put", row, "BASE", 1, '{"a": 1}').code == 0
    assert invoke("-d", "mine", "cell", "get", row, "BASE", "--json").json["body"] == {"a": 1}
    assert invoke("topology", "show", "-d", "mine").code == 0

    from schemaless.store.internals import internals_of

    with schemaless.connect("mine") as store:
        assert internals_of(store).shards.pools.options.pool_size == 3
        assert store.get_cell_latest(row, "BASE").body == {"a": 1}
    with schemaless.connect("mine", pool_size=2) as store:
        assert internals_of(store).shards.pools.options.pool_size == 2
    with pytest.raises(schemaless.InvalidInput, match="no datastore is named 'yours'"):
        schemaless.connect("yours")


@pytest.mark.once
@pytest.mark.long
def test_shells_complete_nouns_options_and_names(file):
    """Bash completes what may come next, including the configured names."""
    write(file, GOOD)

    def completed(*words: str) -> list[str]:
        variables = {
            **os.environ,
            "_SCHEMALESS_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("schemaless", *words)),
            "COMP_CWORD": str(len(words)),
        }
        command = [sys.executable, "-m", "schemaless.cli.entry"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=True)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("mig") == ["migrate"]
    assert completed("-d", "m") == ["mezz"]
    assert completed("info", "-d", "m") == ["mezz"]
    assert "--execute" in completed("migrate", "run", "--ex")


@pytest.mark.once
def test_the_manual_page_has_every_command(invoke, tmp_path):
    """It is what man(1) reads, without a complaint where man is there."""
    page = invoke("man").out
    assert page.startswith('.TH SCHEMALESS 1 "" "schemaless ')
    assert ".SS schemaless migrate run [OPTIONS]" in page
    assert "--execute" in page.replace("\\-", "-")
    assert "\b" not in page

    if shutil.which("man") and shutil.which("groff"):
        (tmp_path / "schemaless.1").write_text(page)
        done = subprocess.run(
            ["man", "--warnings=mac", "-l", str(tmp_path / "schemaless.1")],
            env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "100"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "schemaless migrate run" in done.stdout
