"""What happened to the lite topics of a group that somebody waits for."""

import msgspec


class LiteNews(msgspec.Struct):
    """What happened since those who wait at a place were last looked through.

    Attributes:
        names: Lite topics with something new.
        clients: Who may get something, whatever it reads.
        is_for_all: Everybody may: the group had as much in flight as it allows.
    """

    names: set[str] = msgspec.field(default_factory=set)
    clients: set[str] = msgspec.field(default_factory=set)
    is_for_all: bool = False
