"""Servers that the suite did not make by itself: those of docker/compose.yaml, or any that ``SERVER`` names by URL.

What runs on them keeps to what it made: here is what it drops in the end. Tests that need a server of this machine, to
kill it or to come in through its socket, are not for them.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

import pytest
from pytest_docker.plugin import Services
from sqlalchemy import make_url

from schemaless.wire.connection import Connection
from schemaless.wire.urls import parse_url
from tests.accounts import connect, run

CHOSEN = os.environ.get("SERVER", "")
"""What the suite runs on: nothing (private servers), mysql, mariadb, myrocks, docker, or one URL or two."""

DOCKER = CHOSEN == "docker"
GIVEN = [url for url in CHOSEN.split(",") if url] if "://" in CHOSEN else []
FLAVOURS = [CHOSEN.replace("myrocks", "mariadb")] if CHOSEN in ("mysql", "mariadb", "myrocks") else ["mysql", "mariadb"]
"""The kinds of private servers that tests start."""

_CREATE = re.compile(rb"\s*CREATE DATABASE (?:IF NOT EXISTS )?`?(\w+)", re.IGNORECASE)


class Foreign(NamedTuple):
    """Servers that the suite did not start.

    Attributes:
        urls: without passwords, so that a test may print them.
        flavour: "mysql" or "mariadb", as the first one says.
        prefix: what the names of new datastores begin with, so that two runs do not meet.
    """

    urls: Urls
    flavour: str
    prefix: str


class Urls(list[str]):
    """URLs of servers; asking for the second where there is one skips the test."""

    def __getitem__(self, position):
        if isinstance(position, int) and position >= len(self):
            pytest.skip(f"SERVER names {len(self)} server, and this test needs two: name another, or SERVER=mysql")
        return super().__getitem__(position)


def configure() -> str | None:
    """Return the password of the foreign servers, None where there is none.

    Raises:
        pytest.UsageError: ``SERVER`` is nothing that the suite knows.
    """
    if DOCKER:
        # Compose and the containers take it from the environment; it is this run's own.
        password = os.environ.get("MYSQL_ROOT_PASSWORD") or secrets.token_urlsafe(18)
        os.environ["MYSQL_ROOT_PASSWORD"] = password
        return password
    if GIVEN:
        passwords = {make_url(url).password or os.environ.get("SCHEMALESS_PASSWORD") for url in GIVEN}
        if len(passwords) > 1 or len(GIVEN) > 2:
            raise pytest.UsageError("SERVER names one server or two, with the same account on both")
        return passwords.pop()
    if CHOSEN not in ("", "mysql", "mariadb", "myrocks"):
        raise pytest.UsageError(f"SERVER is mysql, mariadb, myrocks, docker, or one URL or two; got {CHOSEN!r}")
    return None


def bare(url: str) -> str:
    """Return a URL without its password, in the form that the URLs of private servers have: ``...host:port/?...``."""
    parsed = make_url(url)
    query = parsed.query or {"charset": "utf8mb4"}
    text = parsed.set(password=None, database="", query=query).render_as_string(hide_password=False)
    return text.replace("%2F", "/")


@contextmanager
def foreign_servers(urls: Sequence[str], password: str | None, *, clean: bool) -> Iterator[Foreign]:
    """Yield the servers of ``urls``; with ``clean``, drop the databases that this process made there.

    Nothing that was there before is dropped. What another process has created since is left, and named.
    """
    before = {url: databases(url, password) for url in urls}
    with recorded() as made:
        (version,) = rows(urls[0], password, "SELECT VERSION()")[0]
        prefix = f"test{secrets.token_hex(3)}_" if clean else ""
        yield Foreign(Urls(urls), "mariadb" if "mariadb" in str(version).lower() else "mysql", prefix)
        left = []
        for url in urls if clean else ():
            for name in sorted(databases(url, password) - before[url]):
                if name in made or (prefix and name.startswith(prefix)):
                    rows(url, password, f"DROP DATABASE `{name}`")
                else:
                    left.append(f"{name} on {parse_url(url).node}")
    if left:
        print(f"\nnew on the servers, and not dropped since this run did not make it: {', '.join(left)}")


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Yield a set that gets the name of each database which this process creates through a pool."""
    made: set[str] = set()
    execute = Connection.execute

    def recording(self: Connection, sql: bytes):
        if found := _CREATE.match(sql):
            made.add(found[1].decode())
        return execute(self, sql)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "execute", recording)
        yield made


def databases(url: str, password: str | None) -> set[str]:
    """Return the names of a server's databases."""
    return {str(name) for (name,) in rows(url, password, "SHOW DATABASES")}


def rows(url: str, password: str | None, sql: str) -> tuple[tuple[object, ...], ...]:
    """Run a statement on a connection of its own and return its rows."""
    with closing(connect(url, password)) as connection:
        return run(connection, sql)


# ---- containers


def compose_command() -> str:
    """Return ``docker compose`` where the docker command has it, else ``docker-compose``."""
    if shutil.which("docker") is None:
        pytest.fail("SERVER=docker, and there is no docker command", pytrace=False)
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return "docker compose"
    if shutil.which("docker-compose") is not None:
        return "docker-compose"
    return pytest.fail("SERVER=docker needs Docker Compose, as 'docker compose' or as docker-compose", pytrace=False)


def healthy_ports(services: Services) -> dict[str, int]:
    """Wait until the containers are healthy, and return the port of each service on loopback."""
    listed = services._docker_compose.execute("ps --all --quiet").decode()
    containers = re.findall(r"^[0-9a-f]{12,64}$", listed, re.MULTILINE)
    services.wait_until_responsive(lambda: are_healthy(containers), timeout=300, pause=0.5)
    return {name: services.port_for(name, 3306) for name in ("primary-1", "replica-1", "primary-2", "replica-2")}


def are_healthy(containers: Sequence[str]) -> bool:
    """Return whether all containers are; a container that ended, or that is ill for long, fails the test.

    ``compose up --wait`` would do, but the first Compose has no such option.
    """
    shown = subprocess.run(
        ["docker", "inspect", "--format", "{{.Name}} {{.State.Status}} {{.State.Health.Status}}", *containers],
        capture_output=True,
        text=True,
        check=True,
    )
    states = [line.removeprefix("/").split() for line in shown.stdout.splitlines()]
    for name, status, health in states:
        if status == "exited" or health == "unhealthy":
            logs = subprocess.run(["docker", "logs", "--tail", "20", name], capture_output=True, text=True)
            pytest.fail(f"{name} is {status}, {health}:\n{logs.stdout}{logs.stderr}", pytrace=False)
    return all(health == "healthy" for _, _, health in states)
