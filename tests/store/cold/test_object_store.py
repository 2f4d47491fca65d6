"""Cold files behind a server of the S3 protocol, with replies that are late, refused or torn."""

from __future__ import annotations

import threading
import time

import pytest

from schemaless import ColdStoreUnavailable
from schemaless.store.cold.content import Damaged, Group
from schemaless.store.cold.fetching import Wanted, cache, fetch
from schemaless.store.cold.targets import open_target
from schemaless.wire.runtime import THREADS
from tests.store.cold.test_content import CELLS, CONTENT, LIMIT, SIZE, text_of

moto = pytest.importorskip("moto.server", reason="moto is not installed")

pytestmark = pytest.mark.once


class Faulty:
    """The server's application, with faults in replies to GET of objects."""

    def __init__(self):
        self.app = moto.DomainDispatcherApplication(moto.create_backend_app)
        self.delay_s, self.refusals, self.refused, self.torn = 0.0, 0, 0, False
        self.status = "503 Slow Down"

    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].endswith(".parquet"):
            return self.app(environ, start_response)
        time.sleep(self.delay_s)
        if self.refusals:
            self.refusals -= 1
            self.refused += 1
            start_response(self.status, [("Content-Length", "0")])
            return []
        if self.torn:
            content = b"".join(self.app(environ, start_response))
            return [content[: len(content) // 2] + bytes(len(content) - len(content) // 2)]
        return self.app(environ, start_response)


@pytest.fixture(scope="module")
def s3():
    """The application, and the URI of a bucket."""
    serving = pytest.importorskip("werkzeug.serving")
    app = Faulty()
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


def test_refused_requests_are_repeated(target, app):
    """A few 503s are met by the client's own retries."""
    app.refusals = 1
    assert isinstance(read(target, [0])[0], Group)
    assert app.refused == 1


def test_a_store_that_refuses_or_is_slow_is_unavailable(target, app):
    """It is never taken for one that lacks the document; later it is read."""
    app.refusals, app.status = 1_000, "403 Forbidden"
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
