"""What a consumer asks for; `core.filter_expression` compiles it."""

from dataclasses import dataclass
from enum import IntEnum


class FilterType(IntEnum):
    """How an expression is read; the numbers of the wire."""

    TAG = 1
    SQL = 2


@dataclass(frozen=True, slots=True)
class Filter:
    """An expression as the client wrote it."""

    filter_type: FilterType = FilterType.TAG
    expression: str = "*"


EVERYTHING = Filter()
