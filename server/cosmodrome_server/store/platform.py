"""What a log is made of: how it is kept (`LogOptions`) and what it stands on (`Platform`)."""

from collections.abc import Callable

import msgspec

from cosmodrome_server.clock import Clock
from cosmodrome_server.store.checkpoint import CheckpointStore
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.group_commit import Durability
from cosmodrome_server.store.worker import Worker


class LogOptions(msgspec.Struct, frozen=True):
    """How a log is kept (`config.Store` says it in the settings' units).

    Attributes:
        durability: When a frame is durable.
        segment_bytes: How large a segment becomes.
        reserve_bytes: Disk space kept for state records when the disk is full.
        staged_bytes_max: Bytes that may wait for the disk before messages are refused.
        retention_ms: How long messages are kept; 0 for ever.
        retention_bytes: How much of them is kept; 0 for no bound.
        scrub_bytes_s: How many bytes a second are verified in the background; 0 for none.
        reads_around_bad_sectors: A start takes what cannot be read for damaged, instead of
            ending.
    """

    durability: Durability = msgspec.field(default_factory=Durability)
    segment_bytes: int = 128 << 20
    reserve_bytes: int = 16 << 20
    staged_bytes_max: int = 64 << 20
    retention_ms: int = 72 * 3_600_000
    retention_bytes: int = 0
    scrub_bytes_s: int = 10 << 20
    reads_around_bad_sectors: bool = False


class Platform(msgspec.Struct, frozen=True):
    """What a log stands on; simulations replace all of it.

    Attributes:
        files: The disk.
        clock: The time of frames.
        checkpoints: Where checkpoints are kept.
        writer: Runs writes.
        background: Runs everything else.
        random_bytes: Makes salts.
    """

    files: Files
    clock: Clock
    checkpoints: CheckpointStore
    writer: Worker
    background: Worker
    random_bytes: Callable[[int], bytes]
