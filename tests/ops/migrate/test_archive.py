"""Archive files: what was written is read back, and damage of any kind is detected."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import shutil
import stat
import subprocess
import zlib
from itertools import pairwise
from pathlib import Path

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemaless import CorruptArchive, InvalidInput, SchemalessError
from schemaless.ops.migrate import archive
from schemaless.ops.migrate.archive import ArchivedCell
from schemaless.ops.migrate.archive_files import archive_files, read_archive
from tests.ops.migrate.archives import cell, small_file, writer

GOLDEN = Path(__file__).parents[2] / "vectors" / "archive"


def test_cells_come_back_as_they_were_written(tmp_path):
    """All fields of all cells, in order; the end mark shows that the writer was closed."""
    path, chunks = small_file(tmp_path)
    reader = read_archive(path)

    assert list(reader) == [each for chunk in chunks for each in chunk]
    assert (reader.cells, reader.closed, reader.torn_bytes) == (5, True, 0)
    assert list(reader) == [each for chunk in chunks for each in chunk]


bodies = st.binary(max_size=200) | st.integers(1, 3000).map(lambda size: b"text " * size)


cells = st.builds(
    ArchivedCell,
    st.integers(1, (1 << 64) - 1),
    st.binary(min_size=16, max_size=16),
    st.from_regex(r"[A-Za-z0-9_.:-]{1,64}", fullmatch=True),
    st.integers(0, (1 << 63) - 1),
    st.datetimes().map(str),
    bodies,
    st.binary(min_size=32, max_size=32),
)


@pytest.mark.long
@given(st.lists(st.lists(cells, max_size=5), max_size=5), st.integers(100, 4000))
def test_any_cells_come_back_whatever_the_frames(tmp_path_factory, chunks, frame_bytes):
    """Round trip of arbitrary cells in frames of any size."""
    folder = tmp_path_factory.mktemp("archive")
    with writer(folder, frame_bytes=frame_bytes) as made:
        written = sum(made.append(chunk) for chunk in chunks)
    expected = [each for chunk in chunks for each in chunk]

    assert [each for file in archive_files(folder) for each in read_archive(file)] == expected
    assert made.path.exists() is bool(expected)
    assert not expected or written < made.bytes_written == made.path.stat().st_size
    shutil.rmtree(folder)


def test_standard_tools_read_it(tmp_path):
    """``zstd -d`` and any MessagePack reader: a map, then arrays, then a map."""
    path, chunks = small_file(tmp_path)
    with zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True) as stream:
        objects = list(msgpack.Unpacker(stream))
    tool = shutil.which("zstd")
    if tool is not None:
        out = subprocess.run([tool, "-dc", str(path)], capture_output=True, check=True).stdout
        assert list(msgpack.Unpacker(io.BytesIO(out))) == objects

    header, *records, end = objects
    assert {key: header[key] for key in ("format", "datastore", "shard", "shard_count", "job_id", "epoch")} == {
        "format": 1,
        "datastore": "trips",
        "shard": 3,
        "shard_count": 8,
        "job_id": 7,
        "epoch": 1,
    }
    assert [record[0] for record in records] == [1, 2, 3, 4, 5]
    assert [record[6] for record in records] == [each.body for chunk in chunks for each in chunk]
    assert all(record[5] == hashlib.sha256(record[6]).digest() for record in records)
    assert end == {"cells": 5}


def test_files_and_folders_are_for_their_owner_alone(tmp_path):
    """Originals are documents, so only the owner may read them."""
    path, _ = small_file(tmp_path / "new" / "archive")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]
    assert path.parent == tmp_path / "new" / "archive" / "trips" / "job-0007"


def test_two_runners_of_a_shard_never_share_a_file(tmp_path):
    """Not even in the same epoch."""
    writers = [writer(tmp_path) for _ in range(5)]
    for number, each in enumerate(writers):
        each.append([cell(number + 1)])
    for each in writers:
        each.close()

    assert len({each.path for each in writers}) == 5
    assert sorted(each.added_id for file in archive_files(tmp_path) for each in read_archive(file)) == [1, 2, 3, 4, 5]


@pytest.mark.guarantee("archive-damage")
def test_a_file_cut_anywhere_gives_its_whole_frames(tmp_path):
    """At every truncation point the complete chunks are read and the rest is reported as torn, without an error."""
    path, chunks = small_file(tmp_path, close=False)
    whole = path.read_bytes()
    ends = [offset for offset in range(len(whole)) if whole.startswith(archive.MARK_MAGIC, offset)] + [len(whole)]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        reader = read_archive(path)
        frames = max((number for number, end in enumerate(ends) if end <= length), default=0)

        assert list(reader) == [each for chunk in chunks[: max(0, frames - 1)] for each in chunk]
        assert (reader.torn_bytes, reader.closed) == (length - ends[frames], False)
        assert bool(archive_files(tmp_path)) is (frames > 0)


def test_a_closed_file_that_was_cut_is_not_closed(tmp_path):
    """An incomplete copy can be distinguished from a complete one."""
    path, _ = small_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    reader = read_archive(path)

    assert len(list(reader)) == 5
    assert (reader.closed, reader.torn_bytes > 0) == (False, True)


@pytest.mark.guarantee("archive-damage")
@pytest.mark.parametrize("close", [True, False], ids=["closed", "open"])
def test_no_flipped_byte_gives_other_data(tmp_path, close):
    """Each byte of a small file is changed in three ways: the error names the file, and no altered cell is returned."""
    path, chunks = small_file(tmp_path, close=close)
    whole = path.read_bytes()
    for offset in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(whole[:offset] + bytes((whole[offset] ^ flip,)) + whole[offset + 1 :])
            seen: list[ArchivedCell] = []
            with pytest.raises(CorruptArchive, match=r"frame \d, at byte \d+: ") as caught:
                seen.extend(read_archive(path))
            assert caught.value.path == path
            assert caught.value.offset <= offset
            assert seen == [each for chunk in chunks for each in chunk][: len(seen)]


def test_damage_names_the_frame_after_the_good_ones(tmp_path):
    """Cells before the damage are returned; the error names file, frame and offset."""
    path, chunks = small_file(tmp_path)
    whole = bytearray(path.read_bytes())
    third = [offset for offset in range(len(whole)) if whole.startswith(archive.MARK_MAGIC, offset)][2]
    whole[third + 60] ^= 4
    path.write_bytes(whole)
    reader = iter(read_archive(path))

    assert [next(reader), next(reader)] == chunks[0]
    with pytest.raises(CorruptArchive, match=rf"shard-0003\.1\..*: frame 2, at byte {third}: its checksum is wrong"):
        next(reader)


@pytest.mark.parametrize("kept", [0, 10, 36, 50, 70])
def test_zeros_of_a_power_cut_are_a_torn_end(tmp_path, kept):
    """After a power failure the file may have its new length but zeros for the data that was not written."""
    path, chunks = small_file(tmp_path, close=False)
    whole = path.read_bytes()
    last = whole.rindex(archive.MARK_MAGIC)
    path.write_bytes(whole[: last + kept] + bytes(len(whole) - last - kept + 4096))
    reader = read_archive(path)

    assert list(reader) == [each for chunk in chunks[:-1] for each in chunk]
    assert reader.torn_bytes == path.stat().st_size - last


def test_zeros_in_the_middle_are_damage(tmp_path):
    """Data after the zeros shows that the frame had been written completely."""
    path, _ = small_file(tmp_path)
    whole = path.read_bytes()
    second = [offset for offset in range(len(whole)) if whole.startswith(archive.MARK_MAGIC, offset)][1]

    for tail in (b"", bytes(4096)):
        path.write_bytes(whole[: second + 40] + bytes(30) + whole[second + 70 :] + tail)
        with pytest.raises(CorruptArchive, match="frame 1, "):
            list(read_archive(path))


@pytest.mark.guarantee("archive-damage")
def test_frames_out_of_place_are_damage(tmp_path):
    """A frame that was dropped, duplicated or taken from another file is detected, although it is valid by itself."""
    path, _ = small_file(tmp_path)
    whole = path.read_bytes()
    cuts = [offset for offset in range(len(whole)) if whole.startswith(archive.MARK_MAGIC, offset)] + [len(whole)]
    frames = [whole[begin:end] for begin, end in pairwise(cuts)]
    other = writer(tmp_path / "other")
    other.append([cell(1)])
    foreign = other.path.read_bytes()
    foreign_frame = foreign[foreign.rindex(archive.MARK_MAGIC) :]
    other.close()

    for order in (
        [frames[0], frames[2], frames[3]],
        [frames[0], frames[1], frames[1]],
        [frames[0], foreign_frame],
        [*frames, frames[4]],
        [*frames, b"x"],
        [*frames, archive.MARK_MAGIC],
    ):
        path.write_bytes(b"".join(order))
        with pytest.raises(CorruptArchive):
            list(read_archive(path))


def forged(path: Path, contents: list[bytes]) -> Path:
    """Write a file with valid frames and arbitrary contents."""
    made = writer(path)
    made._write(contents)
    made._drop()
    return made.path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            msgpack.packb([1, bytes(16), "A", 1, "t", bytes(32), b"{}", bytes(32)]),
            r"added_id 1 \(row_key 0{32}, A, 1\)",
        ),
        (msgpack.packb([1, bytes(16), "A", 1]), "an invalid record"),
        (msgpack.packb(7), "an invalid record"),
        (msgpack.packb({"cells": 3}), "the end mark counts 3 cells, but the file has 0"),
        (msgpack.packb([1, 2, 3])[:-1], "last record is truncated"),
        (b"\xc1", "not valid MessagePack"),
    ],
)
def test_sound_frames_of_wrong_records_are_refused(tmp_path, content, message):
    """The error names the cell if the SHA-256 does not match, and the frame if the record is invalid."""
    with pytest.raises(CorruptArchive, match=message):
        list(read_archive(forged(tmp_path, [content])))


def test_a_format_of_a_later_version_is_refused(tmp_path, monkeypatch):
    """The version is checked before anything else in the file."""
    monkeypatch.setattr(archive, "FORMAT", 2)
    path, _ = small_file(tmp_path)
    monkeypatch.undo()

    for call in (lambda: list(read_archive(path)), lambda: archive_files(tmp_path)):
        with pytest.raises(InvalidInput, match="archive format 2, but this version reads format 1"):
            call()


def test_a_frame_that_claims_too_much_is_refused_before_memory_is_taken(tmp_path):
    """The size in the mark is checked before decompression."""
    made = writer(tmp_path)
    made.append([cell(1)])
    frame = zstandard.ZstdCompressor().compress(bytes(30 << 20))
    mark = archive.MARK.pack(
        archive.MARK_MAGIC, archive.MARK_BYTES - 8, made._header["file"], 2, len(frame), 30 << 20, zlib.crc32(frame)
    )
    with made.path.open("ab") as stream:
        stream.write(mark + archive.MARK_CHECKSUM.pack(zlib.crc32(mark)) + frame)
    made._drop()

    with pytest.raises(CorruptArchive, match="more than a writer puts in a frame"):
        list(read_archive(made.path))


def test_large_bodies_are_cut_into_frames_that_readers_take(tmp_path):
    """Two bodies of the maximum size in one chunk."""
    largest = os.urandom(1 << 16) * 255 + bytes((1 << 16) - 1)
    with writer(tmp_path) as made:
        made.append([cell(1, largest), cell(2, largest), cell(3)])

    assert [(each.added_id, len(each.body)) for each in read_archive(made.path)] == [
        (1, len(largest)),
        (2, len(largest)),
        (3, 8),
    ]


def test_archive_files_finds_them_anywhere_and_in_order(tmp_path):
    """Files are selected by datastore, job and shard, in any subfolder; files with other names are ignored."""
    for job_id, shard, epoch in [(8, 1, 1), (7, 2, 10), (7, 2, 9), (7, 0, 1)]:
        with writer(tmp_path / "a", job_id=job_id, shard=shard, epoch=epoch) as made:
            made.append([cell(1)])
    shutil.copytree(tmp_path / "a" / "trips" / "job-0008", tmp_path / "b")
    (tmp_path / "a" / "notes.txt").write_text("mine")
    (tmp_path / "a" / "shard-of-pottery.zst").write_bytes(b"mine")

    found = [(file.shard, file.job_id, file.epoch) for file in archive_files(tmp_path / "a")]
    assert found == [(0, 7, 1), (1, 8, 1), (2, 7, 9), (2, 7, 10)]
    assert [file.epoch for file in archive_files(tmp_path / "a", "trips", 7, [2])] == [9, 10]
    assert [file.job_id for file in archive_files(tmp_path / "b")] == [8]
    assert archive_files(tmp_path / "a", "others") == []
    with pytest.raises(InvalidInput, match=r"folder .* does not exist"):
        archive_files(tmp_path / "c")


@pytest.mark.parametrize("content", [b"not an archive, but long enough to hold a mark", b"PK\x03\x04"])
def test_a_wrong_file_under_an_archives_name_is_named(tmp_path, content):
    """A damaged header is neither skipped nor treated as a torn end."""
    (tmp_path / "shard-0001.1.0123456789abcdef.zst").write_bytes(content)

    with pytest.raises(CorruptArchive, match=r"shard-0001\.1\.0123456789abcdef\.zst: frame 0"):
        archive_files(tmp_path)


def test_a_file_under_anothers_name_is_named(tmp_path):
    """The header identifies the file."""
    path, _ = small_file(tmp_path)
    path.rename(path.with_name(path.name.replace("0003", "0004")))

    with pytest.raises(CorruptArchive, match="its header belongs to shard 3"):
        archive_files(tmp_path)


# Golden bytes


def test_golden_file_reads_as_it_did_when_it_was_written():
    """A file of format 1, written by tests/vectors/write.py when the format was defined."""
    (path,) = GOLDEN.rglob("*.zst")
    (file,) = archive_files(GOLDEN)
    reader = read_archive(file)
    found = list(reader)

    assert (file.path, file.datastore, file.shard, file.shard_count, file.job_id, file.epoch) == (
        path,
        "golden",
        17,
        4096,
        12,
        3,
    )
    assert file.created == "2026-01-31T12:00:00+00:00"
    assert reader.closed
    assert [each.added_id for each in found] == [1, 2, (1 << 64) - 1]
    assert [each.body for each in found] == [b'{"a": 1}', b"", b"\xc1\x10\x80rest" * 100]
    assert [each.created_at for each in found] == [f"2026-01-31 00:00:00.00000{n}+00:00" for n in range(3)]
    assert [each.row_key for each in found] == [bytes((n,)) * 16 for n in range(3)]
    assert [each.new_digest for each in found] == [hashlib.sha256(b"%d" % n).digest() for n in range(3)]
    assert [(each.column_name, each.ref_key) for each in found] == [
        ("BASE", 0),
        ("a.b:c-d", 1),
        ("X" * 64, (1 << 63) - 1),
    ]


def test_page_shows_the_golden_files_first_mark():
    """The example in schemaless/ops/migrate/ARCHIVE.md shows the bytes of the golden file."""
    page = (Path(__file__).parents[3] / "schemaless" / "ops/migrate" / "ARCHIVE.md").read_text(encoding="utf-8")
    name, block = re.findall(r"`tests/vectors/archive/(.*)`[^`]*```hex\n([^`]*)```", page)[0]
    shown = b"".join(bytes.fromhex(line.partition("#")[0]) for line in block.splitlines())

    assert (GOLDEN / name).read_bytes()[: archive.MARK_BYTES] == shown
    assert f"{archive.MOST_FRAME_BYTES >> 20} MiB at most" in page


def test_errors_survive_pickling(tmp_path):
    """The errors of worker processes are pickled."""
    error = CorruptArchive("x", path=tmp_path, offset=5, frame=2)
    again = pickle.loads(pickle.dumps(error))

    assert isinstance(again, SchemalessError)
    assert (str(again), again.path, again.offset, again.frame) == ("x", tmp_path, 5, 2)
