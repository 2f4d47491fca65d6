"""A proxy between a client and real servers that cuts, delays and holds back what passes, at a chosen byte.

It listens on loopback, one port per server, and forwards to the server's socket. Of the protocol it knows where packets
begin and end, which statement one carries, and when a reply is whole: a statement is read whole and passed on, then its
reply is. Faults wait in a row: the first strikes at the first event that it names, then the next waits.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn

SENDING: Final = ("before", "in header", "after header", "first byte", "random byte", "last byte", "whole")
"""How much of a statement gets through: nothing, 1 to 3 bytes, 4, its first byte, some, all but its last byte, all."""

ANSWERING: Final = ("no reply", "reply header", "reply random", "reply last", "whole reply")
"""How much of a reply gets through; the statement was executed in any case."""

HOWS: Final = ("rst", "fin", "half", "late", "stall", "delay", "refuse")
"""What happens there.

rst, fin: the client's connection is reset, or closed. half: the client sees the end, and may still send for a moment.
late: reset, and what was held back reaches the server all the same, later. stall: nothing more comes until the client
gives up. delay: everything continues after a pause. refuse: the statement is answered with "interrupted" and never gets
to the server, as MariaDB does to a COMMIT that KILL QUERY meets before it has begun: its transaction stays open.
"""

_PATIENCE_S: Final = 120.0
_HALF_S: Final = 0.05
_REFUSAL: Final = b"\xff" + struct.pack("<H", 1317) + b"#70100Query execution was interrupted"
_INTERRUPTED: Final = struct.pack("<I", len(_REFUSAL) | 1 << 24) + _REFUSAL


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        where: "accept", "greeting", "login", "setup", or how the statement begins, such as "INSERT".
        at: of ``SENDING`` or ``ANSWERING``; "blocked" is "whole", once the server is held up by ``release``'s lock;
            "unread" is "before" with the statement left unread, so that the client cannot even send a long one.
        how: of ``HOWS``.
        skip: so many such events pass unharmed first.
        server_sees_s: the server's side is closed, or gets what is late, so much later than the client's.
        seed: for "random" bytes.
        release: called when the fault has struck.
    """

    where: str
    at: str = "no reply"
    how: str = "rst"
    skip: int = 0
    server_sees_s: float = 0.0
    seed: int = 0
    release: Callable[[], None] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        nth = f" {self.skip + 1}" if self.skip else ""
        seen = f", server sees it {self.server_sees_s * 1000:.0f} ms later" if self.server_sees_s else ""
        return f"{self.how} at {self.where}{nth}: {self.at}{seen}"


class _Cut(Exception):
    """The link has ended."""


class Proxy:
    """Listens on 127.0.0.1 until closed.

    Attributes:
        urls: of the servers by way of the proxy, in the order given; without TLS, which it could not look into.
        struck: every fault that has struck since the last ``arm``.
        reports: the version to put into greetings instead of the server's.
        leads_to: by a server's socket, another one to which its new connections are passed on instead.
    """

    def __init__(self, server_sockets: Sequence[str]) -> None:
        self.struck: list[Fault] = []
        self.leads_to: dict[str, str] = {}
        self.reports: str | None = None
        self._opened: set[tuple[str, int]] = set()
        self._faults: list[Fault] = []
        self._skipped = 0
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._listeners = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in server_sockets]
        ports = [listener.getsockname()[1] for listener in self._listeners]
        self.urls = [f"mysql://root@127.0.0.1:{port}/?ssl_mode=disabled" for port in ports]
        self._acceptors = [
            threading.Thread(target=self._accept, args=pair, name="proxy", daemon=True)
            for pair in zip(self._listeners, server_sockets, strict=True)
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def arm(self, faults: Iterable[Fault]) -> None:
        """Inject these faults, one after the other."""
        with self._lock:
            self._faults = list(faults)
            self._skipped = 0
            self.struck = []

    def disarm(self) -> list[Fault]:
        """Stop injecting faults, and return those that were not injected."""
        with self._lock:
            left, self._faults = self._faults, []
            return left

    def settle(self) -> set[tuple[str, int]]:
        """Wait until each link that was struck is gone; return the server's socket and id of all that are gone."""
        deadline = time.monotonic() + _PATIENCE_S
        while any(link.struck for link in list(self._links)):
            assert time.monotonic() < deadline, "a link with an injected fault continues"
            time.sleep(0.001)
        with self._lock:
            gone = self._opened - {(link.server_socket, link.server_id) for link in self._links}
            self._opened -= gone
            return gone

    def close(self) -> None:
        """Stop listening, and end every link."""
        for listener, acceptor in zip(self._listeners, self._acceptors, strict=True):
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            acceptor.join(_PATIENCE_S)
        for link in list(self._links):
            link.abort()
            link.thread.join(_PATIENCE_S)

    def strike(self, where: str, sides: tuple[str, ...]) -> Fault | None:
        """Return the fault that is due at this event, if there is one."""
        with self._lock:
            fault = self._faults[0] if self._faults else None
            if fault is None or fault.where != where or fault.at not in sides:
                return None
            if self._skipped < fault.skip:
                self._skipped += 1
                return None
            self._skipped = 0
            del self._faults[0]
            self.struck.append(fault)
            return fault

    def _accept(self, listener: socket.socket, server_socket: str) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            link = _Link(self, client, self.leads_to.get(server_socket, server_socket))
            with self._lock:
                self._links.add(link)
            link.thread.start()

    def forget(self, link: _Link) -> None:
        """Called by a link at its end."""
        with self._lock:
            self._links.discard(link)

    def opened(self, link: _Link) -> None:
        """Called by a link that has learned the server's id of its connection."""
        with self._lock:
            self._opened.add((link.server_socket, link.server_id))


class _Link:
    """One client's connection and the one to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server_socket: str) -> None:
        self.proxy = proxy
        self.server_socket = server_socket
        self.client = client
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server_id = 0
        self.struck = False
        self.thread = threading.Thread(target=self._run, name="proxy link", daemon=True)

    def abort(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            with suppress(OSError, _Cut):
                self._serve()
        finally:
            self.client.close()
            self.server.close()
            self.proxy.forget(self)

    def _serve(self) -> None:
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fault = self.proxy.strike("accept", SENDING + ANSWERING)
        if fault is not None and fault.how != "delay":
            self.struck = True
            self._end_client(fault)
            raise _Cut
        if fault is not None:
            time.sleep(fault.server_sees_s)
        self.server.connect(self.server_socket)
        greeting = _packet(self.server)
        end_of_version = greeting.index(b"\0", 5)
        (self.server_id,) = struct.unpack_from("<I", greeting, end_of_version + 1)
        self.proxy.opened(self)
        if self.proxy.reports is not None:
            payload = greeting[4:5] + self.proxy.reports.encode("latin1") + greeting[end_of_version:]
            greeting = struct.pack("<I", len(payload)) + payload
        self._answer("greeting", greeting)
        while True:
            self._ask("login", _packet(self.client))
            reply = _packet(self.server)
            self._answer("login", reply)
            if reply[4] in (0x00, 0xFF):
                break
        while True:
            self._look(_kind(self._peek()))
            command = _packet(self.client)
            if command[4] == 0x01:
                self.server.sendall(command)
                return
            where = _kind(command)
            if self._ask(where, command):
                self._answer(where, _reply(self.server))

    def _peek(self) -> bytes:
        """Return the beginning of the next command, and leave it unread."""
        while len(found := self.client.recv(64, socket.MSG_PEEK)) < 5:
            if not found:
                _ended()
        return found

    def _look(self, where: str) -> None:
        """Inject a fault that leaves a command unread."""
        fault = self.proxy.strike(where, ("unread",))
        if fault is not None:
            self.struck = True
            # Looked for rather than read: what is there already stays.
            poll = select.poll()
            poll.register(self.client, select.POLLRDHUP)
            poll.poll(_PATIENCE_S * 1000)
            raise _Cut

    def _ask(self, where: str, data: bytes) -> bool:
        """Pass on what the client sent; return whether a reply will come to it."""
        fault = self.proxy.strike(where, (*SENDING, "blocked"))
        if fault is None:
            self.server.sendall(data)
            return True
        if fault.how == "refuse":
            self.client.sendall(_INTERRUPTED)
            return False
        self.struck = fault.how != "delay"
        chance = random.Random(fault.seed)
        through = {
            "before": 0,
            "in header": chance.randint(1, 3),
            "after header": 4,
            "first byte": 5,
            "random byte": chance.randint(6, max(6, len(data) - 2)),
            "last byte": len(data) - 1,
            "whole": len(data),
            "blocked": len(data),
        }[fault.at]
        self.server.sendall(data[:through])
        if fault.at == "blocked":
            time.sleep(0.005)
        if fault.how == "delay":
            time.sleep(fault.server_sees_s)
            self.server.sendall(data[through:])
            return True
        self._end_client(fault)
        if fault.how == "late":
            with suppress(OSError):
                self.server.sendall(data[through:])
                if where != "login":
                    _reply(self.server)
        raise _Cut

    def _answer(self, where: str, data: bytes) -> None:
        fault = self.proxy.strike(where, ANSWERING)
        if fault is None:
            self.client.sendall(data)
            return
        self.struck = fault.how != "delay"
        chance = random.Random(fault.seed)
        through = {
            "no reply": 0,
            "reply header": chance.randint(1, 3),
            "reply random": chance.randint(4, len(data) - 1),
            "reply last": len(data) - 1,
            "whole reply": len(data),
        }[fault.at]
        self.client.sendall(data[:through])
        if fault.how == "delay":
            time.sleep(fault.server_sees_s)
            self.client.sendall(data[through:])
            return
        self._end_client(fault)
        raise _Cut

    def _end_client(self, fault: Fault) -> None:
        """End the client's side as the fault says, and then wait as long as the server is not to see it."""
        if fault.how in ("rst", "late"):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.client.close()
        elif fault.how == "fin":
            self.client.close()
        else:
            if fault.how == "half":
                self.client.shutdown(socket.SHUT_WR)
            # An idle client may not look for hours.
            self._until_the_client_ends(_HALF_S if fault.how == "half" else _PATIENCE_S)
        if fault.release is not None:
            threading.Timer(fault.server_sees_s, fault.release).start()
        time.sleep(fault.server_sees_s)

    def _until_the_client_ends(self, at_most_s: float) -> None:
        deadline = time.monotonic() + at_most_s
        with suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                readable, _, _ = select.select([self.client], [], [], left)
                if readable and not self.client.recv(65536):
                    break


def _exactly(end: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = end.recv(min(count, 1 << 20))
        if not part:
            _ended()
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _ended() -> NoReturn:
    raise _Cut


def _packet(end: socket.socket) -> bytes:
    """Read one packet, or all packets of a payload of 16 MiB and more, headers included."""
    parts = []
    while True:
        header = _exactly(end, 4)
        length = int.from_bytes(header[:3], "little")
        parts += [header, _exactly(end, length)]
        if length < 0xFFFFFF:
            return b"".join(parts)


def _reply(end: socket.socket) -> bytes:
    """Read a whole reply: one packet, or a result set up to its second end mark."""
    first = _packet(end)
    if first[4] in (0x00, 0xFF):
        return first
    parts, marks = [first], 0
    while marks < 2:
        part = _packet(end)
        parts.append(part)
        if part[4] == 0xFF:
            break
        marks += part[4] == 0xFE and len(part) < 13
    return b"".join(parts)


def _kind(command: bytes) -> str:
    """Return what a command is, in the words of ``Fault.where``."""
    text = command[5:40].upper()
    if text.startswith((b"SET ", b"SHOW ", b"SELECT @@", b"SELECT VERSION()", b"SELECT DATABASE()")):
        return "setup"
    if text.startswith(b"START TRANSACTION"):
        return "START TRANSACTION"
    return text.split(None, 1)[0].decode("ascii", "replace") if text else "other"
