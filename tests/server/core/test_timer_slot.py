from random import Random

import pytest

from cosmodrome_server.core.timer_slot import Slot, TimerEntry


@pytest.mark.parametrize("count", [1, 300, 5_001])
def test_messages_are_taken_in_the_order_of_the_log_however_they_came(count: int) -> None:
    slot = Slot()
    entries = [TimerEntry(1_000 + at % 100, 10 * at + 1, at) for at in range(count)]
    shuffled = Random(1).sample(entries, count)
    for entry in shuffled:
        slot.add(entry)

    taken: list[TimerEntry] = []
    while len(slot):
        some = slot.ahead(200)
        taken += some
        slot.take_up_to(some[-1].position)

    assert taken == entries
