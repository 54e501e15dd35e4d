"""What SQL filter expressions compute with: values, comparisons, three-valued logic.

A value is None (absent, unknown), a bool, a number or a string. Properties are strings, so
a comparison with a literal converts the string to what the literal is:

    literal      a property that is …          otherwise
    number       numeric text, compared so     EvaluationFailed: the message does not match
    boolean      "true" in any case is TRUE    FALSE
    string       compared as text, by = and <> only

    =    left absent        left there
         both absent TRUE   right absent FALSE
         else unknown       else compared

Source: protocol.md 10.5. Where the reference takes only text of the literal's exact Java
type, any numeric text is taken, and TRUE = a works as a = TRUE does.
"""

import operator
from collections.abc import Callable

Value = None | bool | int | float | str

Ordering = Callable[[float, float], bool]
ORDERINGS: dict[str, Ordering] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class EvaluationFailed(Exception):
    """Values that cannot be compared; the message does not match, whatever is around it."""


def number(text: str) -> int | float:
    """The number a text is.

    Raises:
        EvaluationFailed: It is none, or not finite.
    """
    # Python's own readers take more than a filter should: underscores, "nan", spaces.
    if not text.isascii() or "_" in text or text != text.strip():
        raise EvaluationFailed(text)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        raise EvaluationFailed(text) from None
    if value - value != 0:
        raise EvaluationFailed(text)
    return value


def equal(left: Value, right: Value) -> bool | None:
    """Whether two values are the same, None for unknown.

    Raises:
        EvaluationFailed: They are of kinds that cannot be compared.
    """
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        return _as_boolean(left) == _as_boolean(right)
    return _as_number(left) == _as_number(right)


def ordered(left: Value, right: Value, ordering: Ordering) -> bool | None:
    """Whether two values are in an order, None for unknown; texts are compared as numbers.

    Raises:
        EvaluationFailed: One of them is not a number.
    """
    if left is None or right is None:
        return None
    return ordering(_as_number(left), _as_number(right))


def negated(value: Value) -> bool | None:
    """NOT; unknown stays so."""
    return None if value is None else not value


def truth(value: Value) -> bool | None:
    """A value as a condition: of a property only whether it is there can be said, so FALSE."""
    return value if value is None or isinstance(value, bool) else False


def _as_boolean(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.lower() == "true"
    raise EvaluationFailed(f"{value!r} is not a boolean")


def _as_number(value: Value) -> int | float:
    if isinstance(value, str):
        return number(value)
    if value is None or isinstance(value, bool):
        raise EvaluationFailed(f"{value!r} is not a number")
    return value
