"""Cold files behind a server of the S3 protocol, with replies that are late, refused or torn."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

import schemaless
from schemaless import ColdStoreUnavailable, NewCell, finish_erasure
from schemaless.ops.tier.cooling import TIER, TierSpec
from schemaless.ops.tier.survey import verify
from schemaless.ops.tier.sweep import SWEEP, SweepSpec
from schemaless.store.cold.content import Damaged, Group
from schemaless.store.cold.fetching import Wanted, cache, fetch
from schemaless.store.cold.targets import open_target
from schemaless.store.internals import internals_of
from schemaless.wire.runtime import THREADS
from tests.store.cold.test_content import CELLS, CONTENT, LIMIT, SIZE, text_of

pytestmark = pytest.mark.once


class Faulty:
    """The server's application, with faults in replies to GET and other requests of objects, and with old listings."""

    def __init__(self, moto):
        self.app = moto.DomainDispatcherApplication(moto.create_backend_app)
        self.delay_s, self.refusals, self.refused, self.torn = 0.0, 0, 0, False
        self.status, self.methods = "503 Slow Down", {"GET"}
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self.listings: dict[str, tuple[list[object], bytes]] | None = None

    def listing(self, environ, start_response):
        """Return the first reply to the same request again."""
        query, replied = environ["QUERY_STRING"], []
        if query not in self.listings:
            content = b"".join(self.app(environ, lambda *reply: replied.extend(reply)))
            self.listings[query] = replied[:2], content
        reply, content = self.listings[query]
        start_response(*reply)
        return [content]

    def refuses(self):
        """Return whether this request is to be refused."""
        with self.lock:
            due = self.refusals > 0
            self.refusals -= due
            self.refused += due
        return due

    def __call__(self, environ, start_response):
        if self.listings is not None and "list-type" in environ["QUERY_STRING"]:
            return self.listing(environ, start_response)
        self.requests.append(environ["REQUEST_METHOD"])
        if environ["REQUEST_METHOD"] not in self.methods or not environ["PATH_INFO"].endswith(".parquet"):
            return self.app(environ, start_response)
        time.sleep(self.delay_s)
        if self.refuses():
            start_response(self.status, [("Content-Length", "0")])
            return []
        if self.torn:
            content = b"".join(self.app(environ, start_response))
            return [content[: len(content) // 2] + bytes(len(content) - len(content) // 2)]
        return self.app(environ, start_response)


@pytest.fixture(scope="module")
def s3():
    """The application, and the URI of a bucket."""
    # Imported here, since each process that runs tests collects all of them.
    serving = pytest.importorskip("werkzeug.serving")
    app = Faulty(pytest.importorskip("moto.server", reason="moto is not installed"))
    server = serving.make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        options = f"endpoint_override=127.0.0.1%3A{server.server_port}&scheme=http&region=us-east-1"
        yield app, f"s3://cold/a/b?{options}&allow_bucket_creation=true"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def app(s3):
    app, _ = s3
    app.delay_s, app.refusals, app.refused, app.torn, app.status = 0.0, 0, 0, False, "503 Slow Down"
    app.methods, app.listings = {"GET"}, None
    cache().clear()
    return app


@pytest.fixture
def target(s3, app):
    target = open_target(s3[1])
    if not target.names("c"):
        target.put("c/f.parquet", CONTENT.data, "test")
    return target


def read(target, numbers, name="c/f.parquet", timeout_s=60):
    wanted = [Wanted(name, SIZE, number) for number in numbers]
    return [found for _, found in fetch(target, wanted, THREADS, timeout_s, LIMIT)]


def test_documents_are_read_from_an_object_store(target):
    """Row group by row group; an object that does not exist is no error of the store."""
    groups = read(target, range(1 + max(group for group, _ in CONTENT.places.values())))
    assert [text_of(groups, cell) for cell in CELLS] == [cell.text for cell in CELLS]
    assert target.names("c") == ["f.parquet"]
    assert target.read("c/f.parquet") == CONTENT.data.to_pybytes()
    assert isinstance(read(target, [0], "c/none.parquet")[0], FileNotFoundError)


def test_a_row_group_takes_few_requests(target, app):
    """The size of the object, its footer, and the row group; the footer is kept."""
    app.requests.clear()
    read(target, [0])
    assert app.requests == ["HEAD", "GET", "GET"]
    read(target, [1])
    assert app.requests[3:] == ["HEAD", "GET"]


def test_refused_requests_are_repeated(target, app):
    """A few 503s are met by the client's own retries."""
    app.refusals = 1
    assert isinstance(read(target, [0])[0], Group)
    assert app.refused == 1


def test_a_store_that_keeps_refusing_is_given_up(target, app):
    """The client's default is ten attempts of several seconds, which the end of the process waits for."""
    app.refusals, app.methods = 1_000, {"HEAD"}
    with pytest.raises(ColdStoreUnavailable):
        read(target, [0])
    assert app.refused == 3


def test_a_store_that_hangs_does_not_keep_the_process_alive(tmp_path):
    """One whose reads never return, such as a network file system; fetches that wait for a thread are dropped, too."""
    names = [f"{number}.parquet" for number in range(20)]
    for name in names:
        os.mkfifo(tmp_path / name)
    program = (
        "import sys\n"
        "from schemaless.store.cold.fetching import Wanted, fetch\n"
        "from schemaless.store.cold.targets import open_target\n"
        "from schemaless.wire.runtime import THREADS\n"
        "wanted = [Wanted(name, 9_999, 0) for name in sys.argv[2:]]\n"
        "list(fetch(open_target(sys.argv[1]), wanted, THREADS, 0.01, 1 << 20))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path, *names], capture_output=True, text=True, timeout=240, check=False
    )
    assert (ended.returncode, "ColdStoreUnavailable" in ended.stderr) == (1, True)


def test_a_store_that_refuses_or_is_slow_is_unavailable(target, app):
    """It is never taken for one that lacks the document; later it is read."""
    app.refusals, app.status = 1_000, "403 Forbidden"
    for methods in ({"GET"}, {"GET", "HEAD"}):
        app.methods = methods
        with pytest.raises(ColdStoreUnavailable):
            read(target, [0])
    app.refusals, app.delay_s = 0, 1.0
    with pytest.raises(ColdStoreUnavailable, match="no reply within"):
        read(target, [1], timeout_s=0.1)
    app.delay_s = 0.0
    assert all(isinstance(group, Group) for group in read(target, [0, 1]))


def test_a_torn_reply_is_damage(target, app):
    """What was read is checked before it is returned, and is not kept."""
    app.torn = True
    (found,) = read(target, [0])
    assert isinstance(found, Damaged)
    app.torn = False
    assert isinstance(read(target, [0])[0], Group)


@pytest.mark.mysql
@pytest.mark.guarantee("cold-exact", "cold-verified", "erasure-cold")
def test_nothing_is_lost_by_refusals_and_old_listings(
    fresh_store, admin_url, migrate_store, erase_store, new_row, s3, app
):
    """A run, an erasure and a sweep: listings lack files that were written since, and show deleted ones."""
    uri = s3[1].replace("/a/b", f"/{fresh_store.name}")
    with schemaless.connect(admin_url) as admin:
        internals_of(admin).cold.set_store(uri, 0)
    rows = [new_row() for _ in range(20)]
    fresh_store.put_cells([NewCell(row, "BASE", n, {"of": f"{row} {n}"}) for row in rows for n in (1, 2)])
    later = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    app.methods, app.refusals = {"GET", "HEAD", "PUT"}, 2
    TIER.run(migrate_store, TierSpec(("BASE 0",), later))
    assert app.refused == 2
    app.listings = {}
    folder = internals_of(fresh_store).cold.store().incarnation
    shown = [name for shard in range(4) for name in open_target(uri).names(f"{folder}/{shard:04d}")]
    erased = rows.pop()
    number = erase_store.erase(erased, reason="gdpr").number
    assert finish_erasure(erase_store, number).state == "acknowledged"
    SWEEP.run(migrate_store, SweepSpec(0))
    assert shown == [name for shard in range(4) for name in open_target(uri).names(f"{folder}/{shard:04d}")]

    def documents():
        cache().clear()
        with schemaless.connect(str(internals_of(fresh_store).url)) as other:
            found = other.get_cells_latest([(row, "BASE") for row in [*rows, erased]])
        return {row: cell.body for (row, _), cell in found.items()}

    expected = {row: {"of": f"{row} 2"} for row in rows}
    assert documents() == expected
    app.listings = None
    SWEEP.run(migrate_store, SweepSpec(0))
    assert documents() == expected
    assert verify(migrate_store, range(4)).faults == []
    files = [name for shard in range(4) for name in open_target(uri).names(f"{folder}/{shard:04d}")]
    assert len(files) == len(shown)
    assert len(set(shown) - set(files)) == 1
