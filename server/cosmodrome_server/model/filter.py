"""What a consumer asks for; `core.filter_expression` compiles it."""

from enum import IntEnum

import msgspec


class FilterType(IntEnum):
    """How an expression is read; the numbers of the wire."""

    TAG = 1
    SQL = 2


class Filter(msgspec.Struct, frozen=True, cache_hash=True):
    """An expression as the client wrote it."""

    filter_type: FilterType = FilterType.TAG
    expression: str = "*"


EVERYTHING = Filter()
