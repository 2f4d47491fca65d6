"""Bodies stored as the difference from a higher version of the same row and column: the compressor ``delta``.

``FORMAT.md`` describes the bytes. What a delta refers to is a document, not stored bytes, so that version, its base,
may be re-encoded at any time.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import zstandard

from schemaless.cell import JSONDocument
from schemaless.codec.compressors import frame_header, too_large
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.engine import Engine
from schemaless.codec.envelope import (
    CHECKSUM_BYTES,
    DELTA,
    DELTA_FORMATS,
    HEADER_BYTES,
    ChainedBody,
    Limits,
    base_of,
    check_checksum,
    check_encoded_finite,
    decode_body,
    enveloped,
    is_delta,
    is_enveloped,
    is_erased,
    unseal,
)
from schemaless.codec.registry import NONE
from schemaless.codec.serializers import NotHeld, Payload, Serializer
from schemaless.errors import (
    BaseDiffers,
    BaseMissing,
    CorruptBody,
    InvalidBody,
    MalformedPayload,
    TrailingBytes,
    TruncatedBody,
)

# stored; never change
_BASE_BYTES: Final = 8
KEYFRAME_INTERVAL: Final = 32
"""Number of consecutive ref_keys of which one belongs to a version that is always whole."""

ANCHOR_INTERVAL: Final = 8
"""Number of consecutive ref_keys of which one belongs to an anchor."""

_LEVEL: Final = 3
_WINDOW_LOG_MIN: Final = 10

MAX_PAIR_BYTES: Final = 2 << 20
"""Largest sum of the two payloads. With longer ones, zstd searches only the end of the base."""

MAX_CHAIN: Final = 4_096
"""Most deltas that may depend on each other, for a reader; writers keep far below it."""

_CACHED_BYTES: Final = 16 << 20

_CHECKSUM_FLAG: Final = 4
"""Bit of the fifth byte of a zstd frame that says whether it has a content checksum."""

_BLOCK_BYTES: Final = 128 << 10
_CONTENT_CHECKSUM_BYTES: Final = 4


class _State(threading.local):
    """Contexts of each thread. Creating one takes several times as long as using it: zstd executes CPUID thrice."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self._compressor = zstandard.ZstdCompressor()
        self._of: tuple[Payload, zstandard.ZstdCompressionParameters] | None = None

    def compressor(
        self, base_payload: Payload, parameters: zstandard.ZstdCompressionParameters
    ) -> zstandard.ZstdCompressor:
        """Return the last compressor if it has the same base and parameters, else a new one."""
        if self._of is None or self._of[0] is not base_payload or self._of[1] is not parameters:
            raw = _raw(base_payload)
            self._compressor = zstandard.ZstdCompressor(dict_data=raw, compression_params=parameters)
            self._of = base_payload, parameters
        return self._compressor


_STATE: Final = _State()

Base = tuple[Serializer, Payload]
Version = tuple[Any, int]
"""What the versions of a cell have in common (row_key and column_name), and the ref_key of one of them."""

_NO_MEMORY: Final = "not enough memory"


class Delta(NamedTuple):
    """The parts of a delta.

    Attributes:
        base: ref_key of the other version, which is higher than the cell's own.
        serializer: id of the serializer of both payloads.
        frame: the zstd frame.
        size: length of the payload in bytes.
    """

    base: int
    serializer: int
    frame: bytes
    size: int


def delta_of(body: bytes) -> Delta:
    """Return the parts of a body for which ``is_delta`` is True, without the payload.

    Raises:
        CorruptBody: the body is damaged (a subclass says why).
    """
    base = base_of(body)
    frame = check_checksum(body)[_BASE_BYTES:]
    size, dictionary_id = frame_header(frame)
    if size is None or dictionary_id or not frame[4] & _CHECKSUM_FLAG:
        raise MalformedPayload(
            "the zstd frame of a delta states its size, has a checksum and names no dictionary; this one does not"
        )
    return Delta(base, body[1] >> 4, frame, size)


def payload_bytes(body: bytes) -> int:
    """Return the length of the payload of a delta, as its first bytes state it; 0 if it is damaged."""
    try:
        return frame_header(memoryview(body)[HEADER_BYTES + _BASE_BYTES : -CHECKSUM_BYTES])[0] or 0
    except CorruptBody:
        return 0


def is_keyframe(row_key: bytes, column_name: str, ref_key: int) -> bool:
    """Return whether a version is always whole, so that chains end."""
    return ref_key == _keyframe_near(row_key, column_name, ref_key)


def base_level(row_key: bytes, column_name: str, ref_key: int) -> int:
    """Return 2 for a keyframe, 1 for an anchor, 0 for any other version.

    A version is stored against the next one of a higher level, so that a chain has two deltas at most.
    """
    return 2 if is_keyframe(row_key, column_name, ref_key) else int(ref_key % ANCHOR_INTERVAL == 0)


def expected_base(row_key: bytes, column_name: str, ref_key: int) -> int:
    """Return the next ref_key of a higher level than a version that is no keyframe, whether it is used or not."""
    keyframe = _keyframe_near(row_key, column_name, ref_key)
    if ref_key % ANCHOR_INTERVAL:
        anchor = ref_key // ANCHOR_INTERVAL * ANCHOR_INTERVAL + ANCHOR_INTERVAL
        return keyframe if ref_key < keyframe < anchor else anchor
    return keyframe if keyframe > ref_key else _keyframe_near(row_key, column_name, ref_key + KEYFRAME_INTERVAL)


def _keyframe_near(row_key: bytes, column_name: str, ref_key: int) -> int:
    """Return the keyframe among the ``KEYFRAME_INTERVAL`` ref_keys around a version."""
    group = ref_key // KEYFRAME_INTERVAL
    return group * KEYFRAME_INTERVAL + _keyframe_of(row_key, column_name, group)


@functools.lru_cache(1 << 13)
def _keyframe_of(row_key: bytes, column_name: str, group: int) -> int:
    digest = hashlib.sha256(row_key + group.to_bytes(_BASE_BYTES, "big") + column_name.encode()).digest()
    return digest[0] % KEYFRAME_INTERVAL


def can_be_delta(serializer: Serializer, payload: Payload, document: JSONDocument, engine: Engine) -> bool:
    """Return whether a payload may be stored as a difference, or have others stored as differences from it.

    NaN has many bit patterns, which compare equal. Re-encoding can replace one by another, and differences from the
    document would no longer be readable.
    """
    if serializer.id << 4 | DELTA not in DELTA_FORMATS:
        return False
    try:
        check_encoded_finite(serializer, payload, document, engine)
    except InvalidBody:
        return False
    return True


def encode_delta(serializer: Serializer, payload: Payload, base: int, base_payload: Payload) -> bytes | None:
    """Return a body that stores ``payload`` as the difference from the version ``base``.

    Args:
        serializer: the serializer of both payloads, each as its ``dumps`` returns it and accepted by ``can_be_delta``.
        payload: the serialized document.
        base: ref_key of the other version.
        base_payload: the other version's document, serialized.

    Returns:
        The body; None if the payloads are longer than ``MAX_PAIR_BYTES``.
    """
    pair_bytes = len(payload) + len(base_payload)
    if pair_bytes > MAX_PAIR_BYTES:
        return None
    sizes = len(payload).bit_length(), len(base_payload).bit_length()
    parameters = _parameters(*sizes, max(_WINDOW_LOG_MIN, pair_bytes.bit_length()))
    frame = _STATE.compressor(base_payload, parameters).compress(payload)
    return enveloped(serializer.id << 4 | DELTA, base.to_bytes(_BASE_BYTES, "big") + frame)


@functools.cache
def _parameters(payload_bits: int, base_bits: int, window_log: int) -> zstandard.ZstdCompressionParameters:
    """Return parameters for payloads of these lengths in bits. Creating them takes longer than compressing does."""
    return zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=1 << payload_bits,
        dict_size=1 << base_bits,
        window_log=window_log,
        write_checksum=True,
        write_content_size=True,
        write_dict_id=False,
    )


def apply_delta(delta: Delta, base_payload: Payload, max_bytes: int) -> bytes:
    """Return the payload of a difference.

    Args:
        delta: the difference.
        base_payload: the document of the version ``delta.base``, in the canonical form of ``delta.serializer``.
        max_bytes: maximum length of the payload.

    Raises:
        DecodedSizeExceeded: the payload is longer than ``max_bytes``.
        BaseDiffers: the difference was made from another document.
        CorruptBody: the frame is damaged (a subclass says how).
    """
    if delta.size > max_bytes:
        raise too_large(max_bytes)
    try:
        payload = _STATE.decompressor.decompress_content_dict_chain([_uncompressed_frame(base_payload), delta.frame])
    except zstandard.ZstdError as refusal:
        reason = str(refusal)
    else:
        if len(delta.frame) > _frame_bytes(delta.frame):
            raise TrailingBytes("bytes follow the zstd frame")
        return payload
    if _NO_MEMORY in reason:
        raise MemoryError(f"zstd could not allocate memory to decompress {len(delta.frame)} bytes")
    if "did not decompress full frame" in reason:
        raise TruncatedBody("the zstd frame is incomplete")
    raise BaseDiffers(f"zstd refuses the delta against version {delta.base}, whose document was another one: {reason}")


class Payloads:
    """The last payloads of versions that others may be deltas against, up to a number of bytes.

    A version's document never changes on a server, so they hold for as long as another version depends on it there.
    """

    def __init__(self, max_bytes: int = _CACHED_BYTES) -> None:
        self._payloads: OrderedDict[Version, Base] = OrderedDict()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._by_server: dict[str, Payloads] = {}

    def on(self, server: str) -> Payloads:
        """Return the payloads of versions that were read from a server.

        A server that is promoted may have lost versions, and have got others with their keys since.
        """
        with self._lock:
            return self._by_server.setdefault(server, Payloads(self._max_bytes))

    def get(self, version: Version) -> Base | None:
        """Return a version's serializer and payload, or None."""
        return self._payloads.get(version)

    def keep(self, version: Version, base: Base) -> None:
        """Add a version."""
        with self._lock:
            if version not in self._payloads:
                self._payloads[version] = base
                self._bytes += len(base[1])
            while self._bytes > self._max_bytes:
                _, (_, dropped) = self._payloads.popitem(last=False)
                self._bytes -= len(dropped)


class Versions:
    """Versions of cells that were read together, from which deltas among them get their payloads.

    Attributes:
        bodies: deltas, and what they depend on as far as it exists and is not held.
    """

    def __init__(self, bodies: dict[Version, bytes], payloads: Payloads | None = None) -> None:
        """Create the set; ``payloads`` has those of earlier sets, and gets the ones of this set."""
        self.bodies = bodies
        self._payloads = Payloads() if payloads is None else payloads
        self._held: dict[Version, Base] = {}

    def hold(self, version: Version) -> bool:
        """Keep the payload of a base for as long as these versions exist; return False if it is not known."""
        if version not in self._held:
            found = self._payloads.get(version)
            if found is None:
                return False
            self._held[version] = found
        return True

    def body(self, version: Version) -> ChainedBody:
        """Return the body of one of the deltas, which ``decode_body`` and ``unseal`` accept like a whole one."""
        body = ChainedBody(self.bodies[version])
        body.unseal = _Unseal(self, version)
        return body

    def chain_of(self, version: Version) -> dict[Version, bytes]:
        """Return the bodies of a version and of those that it depends on, as far as they exist."""
        cells, ref_key = version
        chain: dict[Version, bytes] = {}
        while (cells, ref_key) not in chain:
            held, body = self._held.get((cells, ref_key)), self.bodies.get((cells, ref_key))
            if held is not None and chain:
                body = enveloped(held[0].id << 4 | NONE.id, held[1])
            if body is None:
                break
            chain[cells, ref_key] = bytes(body) if is_delta(body) else body
            with suppress(CorruptBody):
                ref_key = base_of(body) if is_delta(body) else ref_key
        return chain

    def unseal(self, version: Version, limits: Limits, engine: Engine, dictionaries: Dictionaries) -> Base:
        """Return the serializer and the payload of one of the deltas; see ``envelope.unseal``."""
        cells, ref_key = version
        chain: list[tuple[int, Delta]] = []
        found: Base | None = None
        while found is None:
            body = self.bodies.get((cells, ref_key))
            if body is None or is_erased(body):
                raise BaseMissing(ref_key, "does not exist" if body is None else "was erased")
            try:
                if not is_delta(body):
                    found = _whole_base(body, chain[-1][1], limits, engine, dictionaries)
                    self._payloads.keep((cells, ref_key), found)
                    break
                delta = delta_of(body)
            except CorruptBody as error:
                if not chain or isinstance(error, BaseDiffers):
                    raise
                raise BaseMissing(ref_key, f"is damaged: {error.message}") from error
            if delta.base <= ref_key or len(chain) == MAX_CHAIN:
                raise MalformedPayload(
                    f"version {ref_key} is a delta against version {delta.base}, which is not higher"
                    if delta.base <= ref_key
                    else f"more than {MAX_CHAIN:,} deltas depend on each other"
                )
            chain.append((ref_key, delta))
            ref_key = delta.base
            found = self._held.get((cells, ref_key)) or self._payloads.get((cells, ref_key))
        for step, delta in reversed(chain):
            found = _apply(delta, found, limits, engine)
            self._payloads.keep((cells, step), found)
        return found


@dataclass(frozen=True, slots=True)
class _Unseal:
    """``unseal`` of the body of one version. A pickled copy has only the versions of its chain, in any process."""

    versions: Versions
    version: Version

    def __call__(self, limits: Limits, engine: Engine, dictionaries: Dictionaries) -> Base:
        return self.versions.unseal(self.version, limits, engine, dictionaries)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unseal_of, (self.versions.chain_of(self.version), self.version)


def _unseal_of(bodies: dict[Version, bytes], version: Version) -> _Unseal:
    return _Unseal(Versions(bodies), version)


def _whole_base(body: bytes, dependent: Delta, limits: Limits, engine: Engine, dictionaries: Dictionaries) -> Base:
    """Return the serializer and payload of a whole version."""
    if len(body) > 1 and is_enveloped(body) and body[1] >> 4 == dependent.serializer:
        return unseal(body, limits, engine, dictionaries)
    return _serialized(decode_body(body, limits, dictionaries, engine=engine), dependent, engine)


def _serialized(document: JSONDocument, dependent: Delta, engine: Engine) -> Base:
    serializer = engine.serializers[dependent.serializer]
    try:
        return serializer, serializer.dumps(document, checked=True)
    except NotHeld as refusal:
        raise BaseDiffers(f"version {dependent.base} cannot be the base of a delta: {refusal}") from None


def _apply(delta: Delta, base: Base, limits: Limits, engine: Engine) -> Base:
    serializer, payload = base
    if serializer.id == delta.serializer:
        # Its stored payload may have another form than the serializer gives it.
        with suppress(BaseDiffers):
            return serializer, apply_delta(delta, payload, limits.decoded_bytes)
    try:
        document = serializer.loads(payload, limits.depth, limits.values)
    except CorruptBody as error:
        raise BaseMissing(delta.base, f"is damaged: {error.message}") from error
    canonical = _serialized(document, delta, engine)
    return canonical[0], apply_delta(delta, canonical[1], limits.decoded_bytes)


def _raw(payload: Payload) -> zstandard.ZstdCompressionDict:
    # A packed payload may begin with the magic number of a trained dictionary.
    return zstandard.ZstdCompressionDict(payload, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _uncompressed_frame(payload: Payload) -> bytes:
    """Return a zstd frame of a payload, because a chain of frames begins with one that has no dictionary."""
    size = len(payload)
    made: list[Payload] = [b"\x28\xb5\x2f\xfd\xa0", size.to_bytes(4, "little")]
    if size <= _BLOCK_BYTES:
        return b"".join((*made, (size << 3 | 1).to_bytes(3, "little"), payload))
    for start in range(0, len(payload), _BLOCK_BYTES):
        block = payload[start : start + _BLOCK_BYTES]
        is_last = start + len(block) == len(payload)
        made += [(len(block) << 3 | is_last).to_bytes(3, "little"), block]
    return b"".join(made)


def _frame_bytes(frame: bytes) -> int:
    """Return the length of the zstd frame with which ``frame``, which decompresses, begins."""
    end, is_last = zstandard.frame_header_size(frame), False
    while not is_last:
        header = int.from_bytes(frame[end : end + 3], "little")
        is_last = bool(header & 1)
        is_run = header >> 1 & 3 == 1
        end += 3 + (1 if is_run else header >> 3)
    return end + _CONTENT_CHECKSUM_BYTES
