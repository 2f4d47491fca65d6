"""Bodies stored as the difference from a higher version of the same row and column: the compressor ``delta``.

``FORMAT.md`` describes the bytes. What a delta refers to is a document, not stored bytes, so that version, its base,
may be re-encoded at any time.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

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
    is_erased,
)
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
"""Average distance of versions that are always whole."""

_LEVEL: Final = 3
_WINDOW_LOG_MIN: Final = 10

MAX_PAIR_BYTES: Final = 2 << 20
"""Largest sum of the two payloads. With longer ones, zstd searches only the end of the base."""

MAX_CHAIN: Final = 4_096
"""Most deltas that may depend on each other, for a reader; writers keep far below it."""

_CACHED_BYTES: Final = 16 << 20

_BLOCK_BYTES: Final = 128 << 10
_CONTENT_CHECKSUM_BYTES: Final = 4


class _State(threading.local):
    """A decompressor for each thread. Creating one takes several times as long as decompressing a delta."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_STATE: Final = _State()

Version = tuple[Any, int]
"""What the versions of a cell have in common (row_key and column_name), and the ref_key of one of them."""

_NO_MEMORY: Final = "not enough memory"


@dataclass(frozen=True, slots=True)
class Delta:
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
    if size is None or dictionary_id or not zstandard.get_frame_parameters(frame).has_checksum:
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
    """Return whether a version is always whole, so that chains end: one in ``KEYFRAME_INTERVAL`` is."""
    key = row_key + ref_key.to_bytes(_BASE_BYTES, "big") + column_name.encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:4], "big") % KEYFRAME_INTERVAL == 0


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
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=len(payload),
        dict_size=len(base_payload),
        window_log=max(_WINDOW_LOG_MIN, pair_bytes.bit_length()),
        write_checksum=True,
        write_content_size=True,
        write_dict_id=False,
    )
    compressor = zstandard.ZstdCompressor(dict_data=_raw(base_payload), compression_params=parameters)
    frame = compressor.compress(payload)
    return enveloped(serializer.id << 4 | DELTA, base.to_bytes(_BASE_BYTES, "big") + frame)


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


class Versions:
    """Versions of cells that were read together, from which deltas among them get their payloads.

    Payloads are kept for the deltas that follow, up to ``_CACHED_BYTES``; deltas are best decoded in order of ref_key,
    in either direction.
    """

    def __init__(self, bodies: Mapping[Version, bytes]) -> None:
        """Create the set from the bodies: deltas, and what they depend on as far as it exists."""
        self._bodies = bodies
        self._payloads: OrderedDict[Version, tuple[Serializer, bytes]] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    def body(self, version: Version) -> ChainedBody:
        """Return the body of one of the deltas, which ``decode_body`` and ``unseal`` accept like a whole one."""
        body = ChainedBody(self._bodies[version])
        body.unseal = _Unseal(self, version)
        return body

    def chain_of(self, version: Version) -> dict[Version, bytes]:
        """Return the bodies of a version and of those that it depends on, as far as they exist."""
        cells, ref_key = version
        chain: dict[Version, bytes] = {}
        while (cells, ref_key) in self._bodies and (cells, ref_key) not in chain:
            body = bytes(self._bodies[cells, ref_key])
            chain[cells, ref_key] = body
            with suppress(CorruptBody):
                ref_key = base_of(body) if is_delta(body) else ref_key
        return chain

    def unseal(
        self, version: Version, limits: Limits, engine: Engine, dictionaries: Dictionaries
    ) -> tuple[Serializer, Payload]:
        """Return the serializer and the payload of one of the deltas; see ``envelope.unseal``."""
        cells, ref_key = version
        chain: list[tuple[Version, Delta]] = []
        found: tuple[Serializer, bytes] | None = None
        document: JSONDocument = None
        while found is None:
            body = self._bodies.get((cells, ref_key))
            if body is None or is_erased(body):
                raise BaseMissing(ref_key, "does not exist" if body is None else "was erased")
            try:
                if not is_delta(body):
                    document = decode_body(body, limits, dictionaries, engine=engine)
                    break
                delta = delta_of(body)
            except CorruptBody as error:
                if not chain:
                    raise
                raise BaseMissing(ref_key, f"is damaged: {error.message}") from error
            if delta.base <= ref_key or len(chain) == MAX_CHAIN:
                raise MalformedPayload(
                    f"version {ref_key} is a delta against version {delta.base}, which is not higher"
                    if delta.base <= ref_key
                    else f"more than {MAX_CHAIN:,} deltas depend on each other"
                )
            chain.append(((cells, ref_key), delta))
            ref_key = delta.base
            found = self._payloads.get((cells, ref_key))
        for step, delta in reversed(chain):
            if found is None or found[0].id != delta.serializer:
                if found is not None:
                    document = found[0].loads(found[1], limits.depth, limits.values)
                serializer = engine.serializers[delta.serializer]
                try:
                    found = serializer, serializer.dumps(document, checked=True)
                except NotHeld as refusal:
                    raise BaseDiffers(f"version {delta.base} cannot be the base of a delta: {refusal}") from None
            found = found[0], apply_delta(delta, found[1], limits.decoded_bytes)
            self._keep(step, found)
        assert found is not None
        return found

    def _keep(self, version: Version, payload: tuple[Serializer, bytes]) -> None:
        with self._lock:
            if version not in self._payloads:
                self._payloads[version] = payload
                self._cached_bytes += len(payload[1])
            while self._cached_bytes > _CACHED_BYTES:
                _, (_, dropped) = self._payloads.popitem(last=False)
                self._cached_bytes -= len(dropped)


@dataclass(frozen=True, slots=True)
class _Unseal:
    """``unseal`` of the body of one version. A pickled copy has only the versions of its chain, in any process."""

    versions: Versions
    version: Version

    def __call__(self, limits: Limits, engine: Engine, dictionaries: Dictionaries) -> tuple[Serializer, Payload]:
        return self.versions.unseal(self.version, limits, engine, dictionaries)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unseal_of, (self.versions.chain_of(self.version), self.version)


def _unseal_of(bodies: Mapping[Version, bytes], version: Version) -> _Unseal:
    return _Unseal(Versions(bodies), version)


def _raw(payload: Payload) -> zstandard.ZstdCompressionDict:
    # A packed payload may begin with the magic number of a trained dictionary.
    return zstandard.ZstdCompressionDict(payload, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _uncompressed_frame(payload: Payload) -> bytes:
    """Return a zstd frame of a payload, because a chain of frames begins with one that has no dictionary."""
    made: list[Payload] = [b"\x28\xb5\x2f\xfd\xa0", len(payload).to_bytes(4, "little")]
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
