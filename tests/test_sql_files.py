"""SQL lives in files named ``sql.py``, or in a folder named ``sql``, and nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_house import ROOT, nodes_of, relative

pytestmark = [pytest.mark.once]

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
