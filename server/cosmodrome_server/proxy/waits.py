"""Receives and pulls that wait, by what they wait for: they ask again when that changes.

    topic deleted, created, changed ─┐
    group deleted, created, changed ─┴─▶ who waits for it asks once more, in a later turn:
                                         an error is told at once, messages are taken, or it waits
                                         on until the deadline it had
    client said good-bye ───▶ its receives are answered with nothing: what they were given would be
                              hidden with nobody to read it

A topic that was deleted and one of its name that comes after it are two: who waits for the first
would hear nothing of the second.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from cosmodrome_server.model.queries import PullQuery, ReceiveQuery

AskAgain = Callable[[], None]
Leave = Callable[[], None]
# Asking takes some 10 µs each.
_ASKED_PER_TURN = 256

_ByName = dict[str, dict[int, AskAgain]]


class Waits:
    """Who waits. All on the loop's thread."""

    def __init__(self) -> None:
        self._of_topics: _ByName = {}
        self._of_groups: _ByName = {}
        self._of_clients: _ByName = {}
        self._last_number = 0

    def __len__(self) -> int:
        return sum(map(len, self._of_topics.values()))

    def begin_receive(self, query: ReceiveQuery, ask_again: AskAgain, leave: Leave) -> int:
        """Note a receive that waits; returns the number to end it by."""
        number = self.begin(query, ask_again)
        self._of_clients.setdefault(query.client_id, {})[number] = leave
        return number

    def begin(self, query: ReceiveQuery | PullQuery, ask_again: AskAgain) -> int:
        """Note who waits; returns the number to end it by."""
        self._last_number += 1
        number = self._last_number
        self._of_topics.setdefault(query.topic, {})[number] = ask_again
        self._of_groups.setdefault(query.group, {})[number] = ask_again
        return number

    def end(self, query: ReceiveQuery | PullQuery, number: int) -> None:
        """Forget a wait that ended; one that did before is nothing."""
        _take_out(self._of_topics, query.topic, number)
        _take_out(self._of_groups, query.group, number)
        if isinstance(query, ReceiveQuery):
            _take_out(self._of_clients, query.client_id, number)

    def client_left(self, client_id: str) -> None:
        """Let the receives of a client that said good-bye end."""
        for leave in list(self._of_clients.get(client_id, {}).values()):
            leave()

    def topic_changed(self, name: str) -> None:
        """Let who waits for the topic ask again."""
        self._let_ask(self._of_topics, name)

    def group_changed(self, name: str) -> None:
        """Let who waits for the group ask again."""
        self._let_ask(self._of_groups, name)

    def _let_ask(self, waits: _ByName, name: str, after: int = 0) -> None:
        # Later: a verb of the broker that is not done yet says what changed.
        if name in waits:
            asyncio.get_running_loop().call_soon(self._ask, waits, name, after)

    def _ask(self, waits: _ByName, name: str, after: int) -> None:
        later = (pair for pair in waits.get(name, {}).items() if pair[0] > after)
        some = list(islice(later, _ASKED_PER_TURN))
        for _, ask_again in some:
            ask_again()
        if len(some) == _ASKED_PER_TURN:
            self._let_ask(waits, name, some[-1][0])


def _take_out(waits: _ByName, name: str, number: int) -> None:
    of_name = waits.get(name)
    if of_name is not None and of_name.pop(number, None) is not None and not of_name:
        del waits[name]
