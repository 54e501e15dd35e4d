"""The road of sealed segments: the broker's own files, read where they lie.

    QuerySegments ──▶ which files hold [start, end), pinned against retention
    42.idx ──map──▶ entries of the queue: position · tag hash · time
    42.seg ──map──▶ heads gathered with numpy ──▶ system · user · body slices ──▶ Arrow

Costs the broker nothing but the manifest, and passes its access control only there: so it
is taken where the files can be opened from here, by whoever may open them, and the salt in
each file's header must be the one the manifest names.

Formats: cosmodrome_server.store.{segment,sealed_index,record}.
"""

import contextlib
import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cosmodrome_proto import bulk_pb2 as bulk
from cosmodrome_server.columnar.envelope import to_batch
from cosmodrome_server.columnar.protobuf import Buffer
from cosmodrome_server.columnar.records import gathered, index_entries, record_lengths, salt_of
from cosmodrome_spark.errors import BrokerUnreachable, PipelineError, UnsupportedByServer
from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.base import Closing, Density
from cosmodrome_spark.read.bulk import BULK
from cosmodrome_spark.read.unpack import columns_to_ask, unpacked
from cosmodrome_spark.read.wire import Wire, check

Positions = NDArray[np.uint64]
_OFFSET_MASK = np.uint64(0xFFFFFFFF)
PIN_SECONDS = 300
ROWS_PER_BATCH = 16_384


@dataclass(frozen=True, slots=True)
class Manifest:
    """The sealed part of a range, and where its files are."""

    directory: Path
    queue_key: int
    segments: tuple[bulk.Segment, ...]
    sealed_end: int
    pin: str


class SegmentReader(Closing):
    """A `TopicReader` of the part of a range that is sealed and can be seen from here."""

    def __init__(self, connection: Connection) -> None:
        self._wire = Wire(connection, is_known=True)
        self._pins: list[str] = []

    def close(self) -> None:
        """Release what is pinned, let the connection go."""
        for pin in self._pins:
            request = bulk.ReleaseSegmentsRequest(pin=pin)
            with contextlib.suppress(BrokerUnreachable, UnsupportedByServer):
                # The pin runs out by itself.
                self._wire.unary(f"{BULK}ReleaseSegments", request.SerializeToString())
        self._wire.close()

    def manifest(self, span: QueueRange) -> Manifest | None:
        """What of a range is sealed; None where its files cannot be seen from here.

        Raises:
            UnsupportedByServer: No Cosmodrome server.
        """
        request = bulk.QuerySegmentsRequest(
            topic=span.queue.topic,
            queue_id=span.queue.queue_id,
            start=span.start,
            end=span.end,
            pin_seconds=PIN_SECONDS,
        )
        reply = self._wire.unary(f"{BULK}QuerySegments", request.SerializeToString())
        answer = bulk.QuerySegmentsResponse.FromString(reply)
        check(answer.status, f"segments of {span.queue}")
        if answer.pin:
            self._pins.append(answer.pin)
        found = Manifest(
            Path(answer.directory),
            answer.queue_key,
            tuple(answer.segments),
            answer.sealed_end,
            answer.pin,
        )
        if not found.segments or not _is_visible(found, answer.host):
            return None
        return found

    def read(self, span: QueueRange, query: ReadQuery) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range, all of which must be sealed.

        Raises:
            UnsupportedByServer: It is not, or its files cannot be seen from here.
        """
        manifest = self.manifest(span)
        if manifest is None or manifest.sealed_end < span.end:
            raise UnsupportedByServer(
                f"[{span.start}, {span.end}) of {span.queue} is not in segments that can be "
                "read here; readMode=auto takes another road"
            )
        yield from self.read_manifest(manifest, span, query)

    def read_manifest(
        self, manifest: Manifest, span: QueueRange, query: ReadQuery
    ) -> Iterator[pa.RecordBatch]:
        """Yield what a manifest names of a range, ascending."""
        density = Density(span, query)
        for segment in manifest.segments:
            start, end = max(span.start, segment.start), min(span.end, segment.end)
            if start > density.next_offset:
                density.missing(density.next_offset, start, start - density.next_offset)
                density.skipped(start)
            yield from _read_segment(manifest, segment, QueueRange(span.queue, start, end), query)
            density.skipped(end)


def _read_segment(
    manifest: Manifest, segment: bulk.Segment, span: QueueRange, query: ReadQuery
) -> Iterator[pa.RecordBatch]:
    files = _Files(manifest.directory)
    base, entries = index_entries(
        files.index(segment.number, segment.salt), manifest.queue_key, span.start, span.end
    )
    offsets = np.arange(base, base + len(entries), dtype=np.int64)
    kept = entries[:, 0] != 0
    if not kept.all():
        density = Density(span, query)
        density.missing(span.start, span.end, int((~kept).sum()))
        entries, offsets = entries[kept], offsets[kept]
    columns = columns_to_ask(query)
    constants: dict[str, str | int] = {
        "topic": span.queue.topic,
        "broker": span.queue.broker,
        "queue_id": span.queue.queue_id,
        "store_host": "",
    }
    for buffer, start, end in files.grouped(entries[:, 0]):
        for rows in _rows_by_bytes(buffer, entries, (start, end), query):
            places = (entries[rows, 0] & _OFFSET_MASK).astype(np.int64)
            times_ms = entries[rows, 2].astype(np.int64)
            messages = gathered(buffer, places, offsets[rows], constants, times_ms=times_ms)
            batch = to_batch(messages, columns, verify_digest=query.verify_digest)
            yield from unpacked(batch, query)


def _rows_by_bytes(
    buffer: Buffer, entries: Positions, run: tuple[int, int], query: ReadQuery
) -> Iterator[slice]:
    """The rows of a run in parts of at most `ROWS_PER_BATCH` and about `query.batch_bytes`."""
    begin, end = run
    while begin < end:
        last = min(end, begin + ROWS_PER_BATCH)
        places = (entries[begin:last, 0] & _OFFSET_MASK).astype(np.int64)
        sizes = np.cumsum(record_lengths(buffer, places))
        fitting = max(1, int(np.searchsorted(sizes, query.batch_bytes, side="right")))
        yield slice(begin, begin + fitting)
        begin += fitting


class _Files:
    """The files of one shard's folder, mapped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def index(self, number: int, salt: int) -> NDArray[np.uint8]:
        """The mapped index of a segment.

        Raises:
            PipelineError: It is of another segment: the file was recycled.
        """
        path = self._directory / f"{number:010d}.idx"
        mapped = np.memmap(path, np.uint8, "r")
        if int(mapped[24:32].view("<u8")[0]) != salt:
            raise PipelineError(f"{path} is of another segment: retention took the one it was")
        return mapped

    def grouped(self, positions: Positions) -> Iterator[tuple[Buffer, int, int]]:
        """Runs of messages that lie in one segment file: its bytes, and the rows [start, end).

        Delayed messages lie where they were sent and are indexed where they became due.
        """
        numbers = positions >> np.uint64(32)
        edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        buffers: dict[int, Buffer] = {}
        for start, end in itertools.pairwise(edges):
            if start == end:
                continue
            number = int(numbers[start])
            if number not in buffers:
                path = segment_path(self._directory, number)
                buffers = {number: Buffer.mapped(np.memmap(path, np.uint8, "r"))}
            yield buffers[number], start, end


def segment_path(directory: Path, number: int) -> Path:
    """The file of a segment; its name holds the number and the salt.

    Raises:
        FileNotFoundError: There is none.
    """
    for path in directory.glob(f"{number:010d}-*.seg"):
        return path
    raise FileNotFoundError(f"segment {number} is not in {directory}")


def _is_visible(manifest: Manifest, host: str) -> bool:
    """Whether every file is here, and is the one that is meant."""
    if host != socket.gethostname() and not manifest.directory.exists():
        return False
    try:
        return all(
            salt_of(segment_path(manifest.directory, each.number)) == each.salt
            for each in manifest.segments
        )
    except OSError:
        return False
