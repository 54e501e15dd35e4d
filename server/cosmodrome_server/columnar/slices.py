"""Arrow arrays of byte slices, copied once, by Arrow.

The slices of a column lie in one buffer at ascending positions. Arrow can see the buffer as
one long list of binaries — gap, slice, gap, slice, … — without copying, and `take` of every
second one copies just the slices:

    buffer   ····|slice 0|·····|slice 1|··|slice 2|···
    offsets      0       7     12      19 22      29
    take         ▲              ▲          ▲
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cosmodrome_server.columnar.protobuf import Buffer, Field, Ints


@dataclass(slots=True)
class SliceColumn:
    """At most one slice for each row; the last one found counts, as protobuf says.

    Attributes:
        rows: How many.
        starts, ends: Byte positions; -1 where there is none.
    """

    rows: int
    starts: Ints = field(init=False)
    ends: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.starts = np.full(self.rows, -1, np.int64)
        self.ends = np.full(self.rows, -1, np.int64)

    def put(self, found: Field) -> None:
        """Take one step's occurrences."""
        self.starts[found.rows] = found.starts
        self.ends[found.rows] = found.ends

    def array(self, buffer: Buffer, kind: pa.DataType, *, empty_is_null: bool = False) -> pa.Array:
        """The column as Arrow `kind` (string or binary), null where there is no slice."""
        starts, ends = self.starts, self.ends
        absent = starts < 0
        if empty_is_null:
            absent = absent | (starts == ends)
        return slices(buffer, starts, ends, absent, kind)


@dataclass(slots=True)
class RepeatedColumn:
    """Any number of slices for each row, in the order of the message."""

    rows: int
    steps: list[Field] = field(default_factory=list)

    def put(self, found: Field) -> None:
        """Take one step's occurrences; steps come in the order of the message."""
        self.steps.append(found)

    def flat(self) -> tuple[NDArray[np.int32], Ints, Ints]:
        """List offsets (one more than rows), and start and end of each slice, by row."""
        counts = np.zeros(self.rows + 1, np.int64)
        for step in self.steps:
            counts[step.rows + 1] += 1
        offsets = np.cumsum(counts)
        starts = np.empty(int(offsets[-1]), np.int64)
        ends = np.empty_like(starts)
        filled = offsets[:-1].copy()
        for step in self.steps:
            places = filled[step.rows]
            starts[places], ends[places] = step.starts, step.ends
            filled[step.rows] += 1
        return offsets.astype(np.int32), starts, ends


def slices(
    buffer: Buffer, starts: Ints, ends: Ints, absent: NDArray[np.bool_], kind: pa.DataType
) -> pa.Array:
    """Arrow `kind` of the bytes [start, end) of each row; null where `absent`.

    Strings that are not UTF-8 get replacement characters: Java writes any text, and one
    bad property must not stop a pipeline.
    """
    present = np.flatnonzero(~absent)
    if not present.size:
        return pa.nulls(len(starts), kind)
    first, last = starts[present], ends[present]
    order = None
    if (first[1:] < last[:-1]).any():
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    base = int(first[0])
    edges = np.empty(2 * len(present), np.int32)
    edges[0::2] = first - base
    edges[1::2] = last - base
    whole = pa.Array.from_buffers(
        pa.binary(),
        len(edges) - 1,
        [None, pa.py_buffer(edges), pa.py_buffer(buffer.bytes[base : int(last[-1])])],
    )
    taken = whole.take(_picks(present, order, absent))
    if pa.types.is_binary(kind):
        return taken
    return _as_text(taken)


def _picks(present: Ints, order: Ints | None, absent: NDArray[np.bool_]) -> pa.Array:
    ranks = np.arange(len(present), dtype=np.int32)
    if order is not None:
        back = np.empty_like(ranks)
        back[order] = ranks
        ranks = back
    if len(present) == len(absent):
        return pa.array(ranks * 2)
    picks = np.zeros(len(absent), np.int32)
    picks[present] = ranks * 2
    return pa.array(picks, mask=absent)


def _as_text(taken: pa.Array) -> pa.Array:
    try:
        return taken.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if each is None else each.decode(errors="replace") for each in taken.to_pylist()
        ]
        return pa.array(texts, pa.string())
