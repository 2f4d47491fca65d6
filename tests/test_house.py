"""The house: packages, floors, and a wheel that works where nothing else is."""

from __future__ import annotations

import ast
import configparser
import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

import schemaless
from schemaless import errors
from schemaless.cli.main import _NOUNS
from schemaless.local.description import LocalServer
from tests.cases import each

pytestmark = [pytest.mark.once]

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("schemaless/**/*.py"), *ROOT.glob("migrations/**/*.py")])
OUTSIDE = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "SCHEMALESS_"))
}
"""The environment without what could lead an installed wheel back to this checkout."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run(*command: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**OUTSIDE, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all that a module is made of."""
    gc.disable()  # of the millions of nodes, which would take longer than parsing
    try:
        return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the nodes when a module's tests have ended: later collections would go through all of them."""
    yield
    nodes_of.cache_clear()


def imports_of(path: Path) -> set[str]:
    """Return the package's modules that a file imports anywhere in it, even for type checkers alone."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


# ---- packages and floors


def test_the_list_of_packages_is_what_is_on_the_disk():
    """setup.cfg lists each folder with modules, so that none is missing from the wheel."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = setup["options"]["packages"].split()

    folders = {relative(path.parent) for path in SOURCES}
    packages = {re.sub(r"^migrations", "schemaless/migrations", folder).replace("/", ".") for folder in folders}

    assert sorted(packages) == sorted(listed)
    assert all((ROOT / folder / "__init__.py").is_file() for folder in folders)


def test_the_floors_are_those_that_are_tested():
    """constraints-floor.txt pins the oldest versions that setup.cfg allows."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = setup["options.extras_require"]
    required = "\n".join([setup["options"]["install_requires"], *map(extras.get, ("async", "cli", "cold", "fast"))])
    floors = re.findall(r"^([\w-]+)(?:\[\w+\])? >= ([\d.]+)", required, re.MULTILINE)
    pinned = re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints-floor.txt").read_text(), re.MULTILINE)

    def padded(version: str) -> list[int]:
        return [int(part) for part in (version + ".0.0").split(".")[:3]]

    assert {name: padded(version) for name, version in floors} == {name: padded(version) for name, version in pinned}


def test_no_file_is_in_an_import_cycle():
    """Whoever follows imports from a file, those inside functions too, does not come back to it."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    left = {name: imports_of(path) & modules.keys() for name, path in modules.items()}
    while ends := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in ends}

    assert left == {}


@each("path", SOURCES)
def test_no_module_imports_the_package_root(path):
    """Every name is imported from the file that defines it: that is what keeps cycles out."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            assert "schemaless" not in [name.name for name in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            assert node.module != "schemaless"


@each("path", sorted(ROOT.glob("tests/**/test_*.py")))
def test_every_test_has_a_docstring(path):
    """Each test says in one line what holds."""
    tests = [
        node
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]

    assert [node.name for node in tests if not ast.get_docstring(node)] == []


PATCHED = {
    ("tests/faults/test_interrupts.py", "_sock"): "PyMySQL's: the socket that it closes",
    ("tests/wire/test_driver.py", "_current_timeout"): "PyMySQL's: a connection is made of a pair of sockets",
    ("tests/wire/test_driver.py", "_rfile"): "PyMySQL's: the same",
    ("tests/wire/test_driver.py", "_sock"): "PyMySQL's: the same",
    ("tests/wire/test_pool.py", "_execute_command"): "PyMySQL's: a statement that the driver fails to send",
    ("tests/wire/test_secret.py", "_config"): "multiprocessing's: the key of another family of processes",
}
"""Private names that tests put something in the place of, and why that is so."""


def test_no_test_patches_a_private_name():
    """Limits are handed in, and what is replaced has a public name; private ones change, and no test is in the way."""
    patched = set()
    for path in ROOT.glob("tests/**/*.py"):
        for node in nodes_of(path):
            match node:
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(name)), *_]):
                    name = name.rpartition(".")[2]
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                    pass
                case ast.Attribute(attr=name, ctx=ast.Store(), value=owner) if ast.unparse(owner) != "self":
                    pass
                case _:
                    continue
            if re.match(r"_[^_]", name):
                patched.add((relative(path), name))

    assert patched == PATCHED.keys()


def test_every_error_is_a_public_name_and_is_raised_somewhere():
    """Every exception a caller may get is a public name, and every public name can be raised."""
    classes = {
        name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    used = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for path in ROOT.glob("schemaless/**/*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Name | ast.Attribute)
    )

    assert set(classes) <= set(schemaless.__all__)
    assert [name for name, kind in classes.items() if not used[name]] == []
    assert {name: getattr(schemaless, name) for name in classes} == classes


PLURAL = re.compile(
    r"\{[^{}]*(:,|(?:len|number_text)\([^{}]*\)|shard_count)\} "
    r"(cells|columns|days|shards|files|rows|documents|lines|faults|originals|bodies|pages|servers)\b"
    r"(?! are too many| and columns|: --)"
)


@pytest.mark.parametrize("room", ["cli", "monitoring", "planning", "ui"])
def test_counts_of_one_are_singular(room):
    """Output formats counts with ``counted``: 1 cell, 2 cells."""
    found = [
        f"{relative(path)}: {line.strip()}"
        for path in sorted((ROOT / "schemaless" / room).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if PLURAL.search(line)
    ]
    assert found == []


def test_public_names_are_all_that_shows():
    """Completion shows what may be used, and what stands in public signatures can be named."""
    assert dir(schemaless) == sorted(schemaless.__all__)
    assert {"Limits", "RowKey", "JSONDocument", "ReadFrom"} <= set(dir(schemaless))
    assert all(getattr(schemaless, name) is not None for name in schemaless.__all__)


@pytest.mark.long
def test_type_checkers_see_the_installed_package(tmp_path):
    """Outside of this tree, mypy knows every public name from make's environment, and no other."""
    program, cache = tmp_path / "application.py", ROOT / ".mypy_cache" / "outside"
    program.write_text(
        "import schemaless\n"
        "from dataclasses import dataclass\n"
        f"from schemaless import {', '.join(schemaless.__all__)}\n"
        "from schemaless import Datastor\n"
        "reveal_type(schemaless.LocalServerError)\n"
        "reveal_type(Limits(values=7).values)\n"
        "schemaless.conect\n"
        "@dataclass\n"
        "class Ride:\n"
        "    fare: float\n"
        "reveal_type(schemaless.connect('').column('BASE', Ride).latest(bytes(16)))\n"
    )
    done = run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, program, cwd=tmp_path)

    assert [line.partition(": ")[2] for line in done.stdout.splitlines()[:-1]] == [
        'error: Module "schemaless" has no attribute "Datastor"; maybe "Datastore"?  [attr-defined]',
        'note: Revealed type is "def (*args: object) -> schemaless.errors.LocalServerError"',
        'note: Revealed type is "int"',
        'error: Module has no attribute "conect"; maybe "connect"?  [attr-defined]',
        'note: Revealed type is "schemaless.cell.Cell[application.Ride] | None"',
    ], done.stdout + done.stderr


# ---- statements live in files named ``sql.py``, or in a folder named ``sql``


SQL = re.compile(
    # What a statement begins with, "{}" being what an f-string puts there.
    r"""\A\s*\(*(
        SELECT\s | INSERT\s | REPLACE\ INTO\s | UPDATE\s+\S+(\s+AS\s+\w+)?\s+SET\s | DELETE\s+FROM\s
      | (CREATE|ALTER|DROP|TRUNCATE)\s+(DATABASE|FUNCTION|INDEX|SCHEMA|TABLE|TRIGGER|USER|VIEW)\b
      | (ANALYZE|CHECK|CHECKSUM|OPTIMIZE|REPAIR)\s+TABLE\b | RENAME\ (TABLE|USER)\b
      | SHOW\s+[A-Z{] | SET\s+(GLOBAL|SESSION|PERSIST|NAMES|TRANSACTION|@|{}) | (GRANT|REVOKE)\s+[A-Z{]
      | START\s+(TRANSACTION|REPLICA|SLAVE|{}) | STOP\s+(REPLICA|SLAVE|{}) | CHANGE\s+(MASTER|REPLICATION|{})
      | BEGIN\s*\Z | COMMIT\s*\Z | ROLLBACK\s*\Z | SAVEPOINT\s | UNLOCK\s+TABLES\b | LOCK\s+TABLES?\s
      | USE\s+[`{] | KILL\s+[\d%{] | DO\s+[\d%{] | PURGE\s+BINARY\b | RESET\s+(MASTER|REPLICA|SLAVE)\b
      | FLUSH\s+[A-Z]+\s*\Z | CALL\s+\S+\( | HANDLER\s | EXPLAIN\s
    )
    # What stands in its middle, or in a part of one.
      | \bSELECT\s.*\sFROM\s | \bINSERT\s+(IGNORE\s+)?INTO\s | \bDELETE\s+FROM\s | \bUPDATE\s+\S+\s+SET\s
      | \bWHERE\s+\S+\s*(=|<|>|\bIN\b|\bIS\b|\bLIKE\b|\bBETWEEN\b) | \b(ORDER|GROUP)\s+BY\s | \bLIMIT\s+[%{\d]
      | \bFOR\s+UPDATE\b | \bFORCE\s+INDEX\b | \bON\s+DUPLICATE\s+KEY\b | \bUNION\s+ALL\b | \bINTERVAL\s+[%{\d]
      | \bAND\s+\S+\s*(=|<|>|\bIN\b|\bIS\b|\bLIKE\b) | \w=%[bd]
      | (?i:\bdelete\s+from\s | \binsert\s+into\s | \bcreate\s+(database|table)\s+if\s)
    """,
    re.VERBOSE | re.DOTALL,
)


def sql_in(nodes: list[ast.AST]) -> list[str]:
    """Return the literals of a module that are SQL: in words, of bytes, or with something put in; no docstrings."""
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    return [
        text
        for node in nodes
        if id(node) not in left_out and (text := literal_text(node)) is not None and SQL.search(text)
    ]


def literal_text(node: ast.AST) -> str | None:
    """Return what a literal says, with braces for what is put in; None for what is no text."""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal_text(part) or "{}" for part in node.values)
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str | bytes):
        return None
    return node.value if isinstance(node.value, str) else node.value.decode("latin-1")


@pytest.mark.parametrize(
    "planted",
    [
        'connection.rows(b"SELECT 1")',
        'connection.rows(b"SELECT @@global.read_only")',
        """connection.execute(f"USE `{database}`")""",
        'sql = b" WHERE job_id=%d" % job_id',
        'sql = "(SELECT a " "FROM b)"',
        """connection.execute(b"INSERT IGNORE INTO %b (a) VALUES (1)" % table)""",
        'x = f"START {role}"',
        """connection.execute(b"UPDATE %b SET a=1" % table)""",
        """y = [b"SET SESSION sql_log_bin=0", "COMMIT"]""",
        """run(f"GRANT {privileges} ON *.* TO {account}")""",
        """z = "CREATE USER x"; w = b"ALTER TABLE %b FORCE"; v = b"DROP DATABASE `%b`" """,
        """b"LOCK TABLES `%b`.cell READ" % database""",
        """text("SHOW TABLES FROM x")""",
        """text("delete from cell")""",
    ],
)
def test_sql_is_found(planted):
    """The finder finds what it looks for."""
    assert sql_in(list(ast.walk(ast.parse(planted)))) != []


@pytest.mark.parametrize(
    "prose",
    [
        '"""Send SELECT a FROM b."""',
        'raise ValueError(f"its body has {n} bytes, and its UPDATE {m}; raise max_allowed_packet")',
        'raise ValueError(f"see SHOW REPLICA STATUS there")',
        '_ON = {"app": "SELECT, INSERT", "tail": "SELECT"}; more = "LOCK TABLES"',
        'help = "Begin with CREATE USER, locked and without a password."',
        'message = "select a column, then update it; delete what is left, and set the rest"',
    ],
)
def test_prose_is_not_mistaken_for_sql(prose):
    """What speaks of SQL is none."""
    assert sql_in(list(ast.walk(ast.parse(prose)))) == []


def holds_sql(path: Path) -> bool:
    """Return whether statements may stand in a file."""
    return path.name == "sql.py" or path.parent.name == "sql"


def test_statements_live_in_sql_files_only():
    """Each feature keeps its statements in its own ``sql.py``; what revisions do to tables is in migrations/."""
    sources = sorted(ROOT.glob("schemaless/**/*.py"))
    found = {relative(path): sql for path in sources if not holds_sql(path) and (sql := sql_in(nodes_of(path)))}

    assert found == {}
    assert [
        path for path in sources if holds_sql(path) and path.stem != "__init__" and not sql_in(nodes_of(path))
    ] == []


# ---- the command line


@pytest.mark.parametrize("noun", _NOUNS)
def test_the_overview_says_what_the_command_says(noun):
    """The overview is kept apart so that --help is fast; it is the first line of the command's own help."""
    module, line = _NOUNS[noun]
    command = getattr(importlib.import_module(module), noun)

    assert inspect.cleandoc(command.help).splitlines()[0] == line


# ---- the wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    no_caches = shutil.ignore_patterns("__pycache__")
    for name in ("schemaless", "migrations"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=no_caches)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, folder / "source")
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """The ``bin`` folder of an empty environment into which only the wheel with its extra [cli] was installed."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    done = run(sys.executable, "-m", "venv", "--without-pip", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    # What is not imported here need not be compiled.
    pip += ["--no-compile", "--constraint", ROOT / "constraints.txt"]
    done = run(*pip, f"{wheel}[cli]", PIP_USER="0")
    if done.returncode and re.search("NewConnectionError|NameResolution|ConnectTimeout|ProxyError", done.stderr):
        pytest.skip(f"pip reached no package index, which this installs from: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


@pytest.mark.long
def test_the_wheel_holds_what_it_needs_and_no_more(wheel):
    """Each module, the revisions, the descriptions of stored bytes and the mark for type checkers; no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = {name.split(".dist-info/")[1] for name in archive.namelist() if ".dist-info/" in name}

    modules = {re.sub(r"^migrations/", "schemaless/migrations/", relative(path)) for path in SOURCES}
    assert names >= modules
    formats = {"schemaless/codec/FORMAT.md", "schemaless/ops/migrate/ARCHIVE.md"}
    assert names - modules == {"schemaless/py.typed", *formats}
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE"} <= metadata


@pytest.mark.long
def test_the_installed_wheel_runs_on_its_own(installed, tmp_path):
    """In an empty environment, far from this checkout, the command line starts and names every noun."""
    done = run(installed / "schemaless", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(re.search(rf"^  {noun} +\S", done.stdout, re.MULTILINE) for noun in _NOUNS)

    done = run(installed / "python", "-c", "import schemaless; print(schemaless.__file__)", cwd=tmp_path)
    assert done.stdout.startswith(str(installed.parent))


HELP = """
import contextlib, io, json, sys
from schemaless.cli.main import run
shown = {}
for noun in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = run([noun, "--help"])
    shown[noun] = [status, err.getvalue(), out.getvalue()]
print(json.dumps(shown))
"""


@pytest.mark.long
def test_the_installed_wheel_shows_each_nouns_help(installed, tmp_path):
    """No command needs more than the wheel's own dependencies to say what it does."""
    done = run(installed / "python", "-c", HELP, *_NOUNS, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    for noun, (status, err, out) in json.loads(done.stdout).items():
        assert (status, err) == (0, ""), noun
        assert out.startswith(f"Usage: schemaless {noun} ")


@pytest.mark.long
def test_the_installed_wheel_works_without_the_fast_extra(installed, tmp_path):
    """The stock libraries are enough: the wheel was installed without [fast]."""
    script = "import importlib.util as u; print([n for n in ('ormsgpack', 'msgspec', 'orjson') if u.find_spec(n)])"
    assert run(installed / "python", "-c", script, cwd=tmp_path).stdout == "[]\n"

    model = ["capacity", "model", "--documents-per-day", "1M", "--bytes-per-document", "20KB", "--disk", "1024GB"]
    assert run(installed / "schemaless", *model, cwd=tmp_path).stdout.startswith("Full in 51 days")


@pytest.mark.long
@pytest.mark.parametrize("missing", [["click"], ["rich"], ["click", "rich"]], ids=" and ".join)
def test_without_the_cli_extra_the_command_says_what_to_install(installed, tmp_path, missing):
    """Where [cli] was not installed there is one line with the next step, and status 2."""
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in missing)
    done = run(
        installed / "python",
        "-c",
        f"import sys; {hide}from schemaless.cli.entry import main; sys.exit(main())",
        cwd=tmp_path,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"schemaless: the command line needs {' and '.join(missing)}: pip install 'schemaless-store[cli]'\n"
    )


@pytest.mark.long
@pytest.mark.mysql
def test_a_schema_upgrade_runs_from_the_installed_wheel(installed, tmp_path, servers, accounts, flavour):
    """The revisions ship in the wheel: a shard that lost its tables gets them back, and only that one."""
    command = [installed / "schemaless"]
    accounts.allow("admin", f"wheel_{flavour}", 2)
    clusters = [part for url in accounts.urls("admin") for part in ("--cluster", url)]
    created = run(*command, "create", f"wheel_{flavour}", "--shards", 2, *clusters, cwd=tmp_path)
    assert created.returncode == 0, created.stderr
    url = {"SCHEMALESS_URL": created.stdout.strip()}
    tables = statements(servers, f"wheel_{flavour}_0001", "SHOW CREATE TABLE cell", "SHOW CREATE TABLE shard_identity")
    statements(servers, f"wheel_{flavour}_0001", "DROP TABLE cell, shard_identity, alembic_version")
    assert run(*command, "schema", "status", cwd=tmp_path, **url).returncode == 1

    upgraded = run(*command, "schema", "upgrade", "--json", cwd=tmp_path, **url)

    assert upgraded.returncode == 0, upgraded.stderr
    assert json.loads(upgraded.stdout) == {"upgraded": [f"wheel_{flavour}_0001"], "current": 2, "failed": {}}
    assert run(*command, "schema", "status", cwd=tmp_path, **url).returncode == 0
    assert tables == statements(
        servers, f"wheel_{flavour}_0001", "SHOW CREATE TABLE cell", "SHOW CREATE TABLE shard_identity"
    )


def statements(servers: list[LocalServer], database: str, *sql: str) -> list[object]:
    """Run statements in a database on whichever server has it, and return the rows of each."""
    for server in servers:
        connect = contextlib.closing(pymysql.connect(unix_socket=str(server.socket), user="root", ssl_disabled=True))
        with connect as connection, connection.cursor() as cursor:
            if cursor.execute("SHOW DATABASES LIKE %s", (database.replace("_", r"\_"),)):
                connection.select_db(database)
                return [cursor.execute(statement) and cursor.fetchall() for statement in sql]
    raise AssertionError(f"no server has {database}")
