"""Uber's published measurements: encoding and compressing 2,219 trips for Schemaless, 2016.

Source: Uber Engineering, "How Uber Engineering Evaluated JSON Encoding and Compression Algorithms to Put the Squeeze on
Trip Data". The figures are from its tables; the rest of its 40 combinations appear only in charts without numbers.
Encoding includes compressing, decoding includes inflating. Factors are relative to JSON + zlib; the speed factor covers
encode and decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of the article's tables. Totals are over all documents.

    Attributes:
        encode_ms: time to encode and compress, in ms.
        decode_ms: time to inflate and decode, in ms.
        size_bytes: total size.
        size_factor: size relative to JSON + zlib, as printed.
        speed_factor: time relative to JSON + zlib, as printed; lower is faster.
    """

    encode_ms: int
    decode_ms: int
    size_bytes: int
    size_factor: float
    speed_factor: float


ARTICLE: Final[dict[tuple[str, str], Figures]] = {
    ("protobuf", "zlib"): Figures(2158, 925, 10_885_018, 0.46, 0.34),
    ("thrift", "bz2"): Figures(5531, 2003, 11_178_018, 0.47, 0.82),
    ("protobuf", "bz2"): Figures(5111, 1738, 12_023_408, 0.51, 0.75),
    ("thrift", "zlib"): Figures(1817, 1147, 12_451_285, 0.53, 0.32),
    ("protobuf", "snappy"): Figures(1224, 790, 14_694_130, 0.62, 0.22),
    ("cbor", "zlib"): Figures(2573, 2611, 18_290_630, 0.78, 0.57),
    ("msgpack", "zlib"): Figures(4231, 715, 18_312_106, 0.78, 0.54),
    ("marshal", "zlib"): Figures(2095, 1416, 18_567_296, 0.79, 0.38),
    ("thrift", "snappy"): Figures(628, 1011, 19_003_267, 0.81, 0.18),
    ("ujson", "zlib"): Figures(2956, 1165, 19_917_716, 0.85, 0.45),
    ("json", "zlib"): Figures(5561, 3586, 23_560_699, 1.00, 1.00),
    ("json", "none"): Figures(3260, 3275, 132_852_837, 5.64, 0.71),
}
"""The article's figures, by serializer and compressor."""
