import errno

from cosmodrome_server.errors import CorruptFrame, ReadFailed
from cosmodrome_server.store import patience
from cosmodrome_server.store.patience import READS_MAX, Patience

REFUSED = OSError(errno.EIO, "refused")


def test_what_is_refused_again_and_again_is_damaged_in_the_end_and_nothing_else_is() -> None:
    waiting = Patience()

    kinds = [type(waiting.refused("a", "it", REFUSED)) for _ in range(READS_MAX)]

    assert kinds == [ReadFailed] * (READS_MAX - 1) + [CorruptFrame]
    assert isinstance(waiting.refused("b", "it", REFUSED), ReadFailed)


def test_no_more_names_are_counted_than_the_bound_allows() -> None:
    waiting = Patience()
    for name in range(2 * patience._COUNTED_MAX):
        waiting.refused(name, "it", REFUSED)

    assert len(waiting._refusals) == patience._COUNTED_MAX
