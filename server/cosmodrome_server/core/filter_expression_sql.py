"""SQL92 filters: text → closures over the properties of a message.

    text ──lark (LALR)──▶ nodes, checked as they are made ──▶ one closure: properties → bool

Precedence, low to high: OR · AND · = <> IS · > >= < <= CONTAINS STARTSWITH ENDSWITH BETWEEN
IN · unary + - NOT. Note that NOT binds closest: NOT a = 1 is (NOT a) = 1.

The parser is made on the first SQL filter: importing lark takes 60 ms, and most brokers
never see one. Nothing is evaluated that the result does not need: AND stops at FALSE, OR at
TRUE; so a comparison that fails spoils only what depends on it.

Source: protocol.md 10.3 to 10.5 with their DO marks: text after a whole expression is
refused, and so is nothing else the reference takes but the nesting limit.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache, partial
from typing import Any, NoReturn

import msgspec

from cosmodrome_server.core.filter_expression_values import (
    ORDERINGS,
    EvaluationFailed,
    Value,
    equal,
    negated,
    ordered,
    truth,
)
from cosmodrome_server.errors import IllegalFilterExpression

# Deeper nesting than any person writes; the closures below it stay far from the stack's end.
NESTING_MAX = 100
EXPRESSION_CHARS_MAX = 16_384
_INT64_MAX = (1 << 63) - 1
# Of that number. Longer ones are not even read: Python reads 4,300 digits at most.
_INT64_DIGITS = 19
_SHOWN_CHARS = 40

_GRAMMAR = r"""
start: or
?or: and (_OR and)*                         -> any_of
?and: equality (_AND equality)*             -> all_of
?equality: comparison
    | equality EQUALITY comparison          -> equality
    | equality _IS NULL                    -> is_null
    | equality _IS _NOT NULL               -> is_not_null
?comparison: unary
    | comparison ORDER unary                -> order
    | comparison SEARCH STRING              -> search
    | comparison _NOT SEARCH STRING         -> not_search
    | comparison _BETWEEN unary _AND unary  -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN "(" STRING ("," STRING)* ")" -> member
    | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> not_member
?unary: "+" unary
    | "-" unary                             -> minus
    | _NOT unary                            -> negation
    | primary
?primary: INTEGER                           -> integer
    | FLOAT                                 -> decimal
    | STRING                                -> string
    | BOOLEAN                               -> boolean
    | NULL                                  -> null
    | IDENTIFIER                            -> property
    | "(" or ")"                            -> bracket

EQUALITY.1: /=|<>/
ORDER: />=|<=|>|</
_OR.2: /OR(?![A-Za-z0-9_$])/i
_AND.2: /AND(?![A-Za-z0-9_$])/i
_NOT.2: /NOT(?![A-Za-z0-9_$])/i
_IS.2: /IS(?![A-Za-z0-9_$])/i
_IN.2: /IN(?![A-Za-z0-9_$])/i
_BETWEEN.2: /BETWEEN(?![A-Za-z0-9_$])/i
SEARCH.2: /(CONTAINS|STARTSWITH|ENDSWITH)(?![A-Za-z0-9_$])/i
BOOLEAN.2: /(TRUE|FALSE)(?![A-Za-z0-9_$])/i
NULL.3: /NULL(?![A-Za-z0-9_$])/i
IDENTIFIER: /[A-Za-z_$][A-Za-z0-9_$]*/
FLOAT.1: /([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER: /(0|[1-9][0-9]*)[lL]?/
STRING: /'(?:[^']|'')*'/
_BLANK: /[ \t\n\f\r]+/
_LINE_COMMENT.3: /--[^\n\r]*/
_COMMENT.3: /\/\*(?:[^*]|\*(?!\/))*\*\//
%ignore _BLANK
%ignore _LINE_COMMENT
%ignore _COMMENT
"""

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
Predicate = Callable[[Properties], bool]


class Kind(Enum):
    """What a node may be used for."""

    PROPERTY = 1
    CONSTANT = 2
    CONDITION = 3
    NEGATIVE = 4  # unary minus of something that is not a literal: always unknown


class _Node(msgspec.Struct):
    """A checked part of an expression.

    Attributes:
        kind: What it is.
        evaluate: Its value.
        constant: The value of a constant.
        text: As the user wrote it, for messages.
        position: Where it begins, from 0.
        depth: How deep it is nested.
    """

    kind: Kind
    evaluate: Evaluate
    constant: Value = None
    text: str = ""
    position: int = 0
    depth: int = 1


class SqlFilter(msgspec.Struct, frozen=True):
    """A compiled expression.

    Attributes:
        matches: Whether a message with these properties matches; absent ones are left out.
        names: The properties it looks at.
    """

    matches: Predicate
    names: frozenset[str] = msgspec.field(default_factory=frozenset)


def compile_sql(expression: str) -> SqlFilter:
    """Compile an SQL expression.

    Raises:
        IllegalFilterExpression: Says where and why.
    """
    if not expression.strip():
        raise IllegalFilterExpression("an SQL filter must not be empty")
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise IllegalFilterExpression(
            f"the SQL filter has {len(expression)} characters, {EXPRESSION_CHARS_MAX} are allowed"
        )
    builder = _Builder()
    root = _parse(expression, builder)
    condition = _condition(root)
    return SqlFilter(partial(_is_true, condition), frozenset(builder.names))


def _is_true(condition: Evaluate, properties: Properties) -> bool:
    try:
        return condition(properties) is True
    except EvaluationFailed:
        return False


def _parse(expression: str, builder: "_Builder") -> _Node:
    # Imported on the first SQL filter: see the module.
    from lark.exceptions import UnexpectedInput, UnexpectedToken  # noqa: PLC0415 - see above

    try:
        tree = _parser().parse(expression)
    except UnexpectedInput as error:
        # Every kind of this error that a parser raises sets it.
        position: int = error.pos_in_stream  # type: ignore[assignment]  # see above
        if isinstance(error, UnexpectedToken) and error.token.type == "$END":
            raise IllegalFilterExpression(
                f"the SQL filter ends too early, at position {len(expression)}"
            ) from None
        raise IllegalFilterExpression(
            f"the SQL filter cannot be read at position {position}, at"
            f" {expression[position : position + 20]!r}{_hint(expression, position)}"
        ) from None
    return _built(tree, builder)


def _hint(expression: str, position: int) -> str:
    rest = expression[position:].upper()
    if rest.startswith("!"):
        return ": not equal is <>"
    if rest.startswith("LIKE"):
        return ": there is no LIKE; CONTAINS, STARTSWITH and ENDSWITH search in text"
    if rest.startswith(('"', "`")):
        return ": text stands in single quotes, property names in none"
    if rest.startswith(("*", "/", "+", "-", "%")):
        return ": there is no arithmetic"
    return ""


@lru_cache(maxsize=1)
def _parser() -> Any:  # noqa: ANN401 - lark's class is not imported before it is needed
    from lark import Lark  # noqa: PLC0415 - on the first SQL filter

    return Lark(_GRAMMAR, parser="lalr", lexer="basic", propagate_positions=True)


def _built(tree: Any, builder: "_Builder") -> _Node:  # noqa: ANN401 - a lark tree
    """Make the nodes of a tree, children first, without recursion: trees come from users."""
    made: dict[int, _Node] = {}
    for part in tree.iter_subtrees():
        children = [made[id(c)] if hasattr(c, "data") else c for c in part.children]
        make = getattr(builder, str(part.data))
        node: _Node = make(children)
        if node.depth > NESTING_MAX:
            raise IllegalFilterExpression(
                f"the SQL filter is nested deeper than {NESTING_MAX} at position {node.position}"
            )
        made[id(part)] = node
    return made[id(tree)]


def _refuse(node: _Node, reason: str) -> NoReturn:
    raise IllegalFilterExpression(f"SQL filter, position {node.position}: {node.text} {reason}")


def _decided_by(decisive: bool, children: list[_Node]) -> _Node:  # noqa: FBT001 - a value of SQL
    """OR (True decides) and AND (False does) of three values: else NULL, if there is one."""
    if len(children) == 1:
        return children[0]
    conditions = [_condition(child) for child in children]

    def evaluate(properties: Properties) -> Value:
        result: bool | None = not decisive
        for condition in conditions:
            value = condition(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return _join(evaluate, *children)


def _condition(node: _Node) -> Evaluate:
    """A node as a condition; refuses literals that are not boolean."""
    if node.kind is Kind.CONDITION:
        return node.evaluate
    if node.kind is Kind.PROPERTY:
        return lambda properties: truth(node.evaluate(properties))
    if node.kind is Kind.CONSTANT and (node.constant is None or isinstance(node.constant, bool)):
        return node.evaluate
    _refuse(node, "is not a condition")


def _check_ordered(node: _Node) -> None:
    if node.kind is Kind.CONDITION:
        _refuse(node, "is a condition and cannot be compared")
    if node.kind is Kind.CONSTANT and (
        node.constant is None or isinstance(node.constant, bool | str)
    ):
        _refuse(node, "cannot be compared by order")


def _check_equality(left: _Node, right: _Node) -> None:
    for node in (left, right):
        if node.kind is Kind.CONSTANT and node.constant is None:
            _refuse(node, "cannot be compared; use IS NULL")
    are_literals = left.kind is right.kind is Kind.CONSTANT
    if are_literals and isinstance(left.constant, bool) != isinstance(right.constant, bool):
        _refuse(right, f"cannot be compared with {left.text}")


def _depth(*nodes: _Node) -> int:
    return 1 + max(node.depth for node in nodes)


def _join(evaluate: Evaluate, *nodes: _Node) -> _Node:
    first = nodes[0]
    return _Node(
        Kind.CONDITION, evaluate, text=first.text, position=first.position, depth=_depth(*nodes)
    )


_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class _Builder:
    """One method per rule of the grammar; children are nodes and tokens."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def start(self, children: list[_Node]) -> _Node:
        return children[0]

    def bracket(self, children: list[_Node]) -> _Node:
        inner = children[0]
        inner.depth += 1
        return inner

    def any_of(self, children: list[_Node]) -> _Node:
        return _decided_by(True, children)  # noqa: FBT003 - it is what decides

    def all_of(self, children: list[_Node]) -> _Node:
        return _decided_by(False, children)  # noqa: FBT003 - it is what decides

    def equality(self, children: list[Any]) -> _Node:
        left, sign, right = children
        _check_equality(left, right)
        is_equality = sign == "="

        def evaluate(properties: Properties) -> Value:
            result = equal(left.evaluate(properties), right.evaluate(properties))
            return result if is_equality else negated(result)

        return _join(evaluate, left, right)

    def is_null(self, children: list[Any]) -> _Node:
        operand = children[0]
        return _join(lambda properties: operand.evaluate(properties) is None, operand)

    def is_not_null(self, children: list[Any]) -> _Node:
        operand = children[0]
        return _join(lambda properties: operand.evaluate(properties) is not None, operand)

    def order(self, children: list[Any]) -> _Node:
        left, sign, right = children
        _check_ordered(left)
        _check_ordered(right)
        ordering = ORDERINGS[str(sign)]
        return _join(lambda p: ordered(left.evaluate(p), right.evaluate(p), ordering), left, right)

    def search(self, children: list[Any]) -> _Node:
        return self._search(children, wanted=True)

    def not_search(self, children: list[Any]) -> _Node:
        return self._search(children, wanted=False)

    def _search(self, children: list[Any], *, wanted: bool) -> _Node:
        operand, word, quoted = children
        is_found = _SEARCHES[str(word).upper()]
        wanted_text = _text(quoted)

        def evaluate(properties: Properties) -> Value:
            value = operand.evaluate(properties)
            # Absent, or nothing to look for: FALSE in the positive and the NOT form alike.
            if value is None or not wanted_text:
                return False
            if not isinstance(value, str):
                raise EvaluationFailed(f"{value!r} is not text")
            return is_found(value, wanted_text) is wanted

        return _join(evaluate, operand)

    def between(self, children: list[Any]) -> _Node:
        return self._between(children, wanted=True)

    def not_between(self, children: list[Any]) -> _Node:
        return self._between(children, wanted=False)

    def _between(self, children: list[Any], *, wanted: bool) -> _Node:
        operand, low, high = children
        for node in children:
            _check_ordered(node)
        if low.kind is high.kind is Kind.CONSTANT and low.constant > high.constant:
            _refuse(low, f"is above {high.text}: BETWEEN takes the lower bound first")
        at_least, at_most = ORDERINGS[">="], ORDERINGS["<="]

        def evaluate(properties: Properties) -> Value:
            value = operand.evaluate(properties)
            from_low = ordered(value, low.evaluate(properties), at_least)
            if from_low is False:
                return not wanted
            to_high = ordered(value, high.evaluate(properties), at_most)
            if to_high is False:
                return not wanted
            return None if from_low is None or to_high is None else wanted

        return _join(evaluate, operand, low, high)

    def member(self, children: list[Any]) -> _Node:
        return self._member(children, wanted=True)

    def not_member(self, children: list[Any]) -> _Node:
        return self._member(children, wanted=False)

    def _member(self, children: list[Any], *, wanted: bool) -> _Node:
        operand, *quoted = children
        if operand.kind is not Kind.PROPERTY:
            _refuse(operand, "is not a property: IN looks a property up in a list")
        texts = frozenset(map(_text, quoted))

        def evaluate(properties: Properties) -> Value:
            value = operand.evaluate(properties)
            return None if value is None else (value in texts) is wanted

        return _join(evaluate, operand)

    def minus(self, children: list[_Node]) -> _Node:
        operand = children[0]
        value = operand.constant
        place = (operand.text, operand.position, operand.depth + 1)
        if operand.kind is Kind.CONSTANT and not isinstance(value, bool | str | None):
            return _constant(-value, f"-{place[0]}", *place[1:])
        return _Node(Kind.NEGATIVE, lambda _: None, None, *place)

    def negation(self, children: list[_Node]) -> _Node:
        operand = children[0]
        condition = _condition(operand)
        return _join(lambda properties: negated(truth(condition(properties))), operand)

    def integer(self, children: list[Any]) -> _Node:
        token = children[0]
        digits = token.rstrip("lL")
        if len(digits) > _INT64_DIGITS or int(digits) > _INT64_MAX:
            shown = token if len(token) <= _SHOWN_CHARS else f"{token[:_SHOWN_CHARS]}…"
            raise IllegalFilterExpression(
                f"SQL filter, position {token.start_pos}: {shown} does not fit 64 bits,"
                f" {_INT64_MAX} is the largest"
            )
        return _constant(int(digits), str(token), token.start_pos)

    def decimal(self, children: list[Any]) -> _Node:
        token = children[0]
        value = float(token)
        if value == float("inf"):
            raise IllegalFilterExpression(
                f"SQL filter, position {token.start_pos}: {token} is too large a number"
            )
        return _constant(value, str(token), token.start_pos)

    def string(self, children: list[Any]) -> _Node:
        return _constant(_text(children[0]), str(children[0]), children[0].start_pos)

    def boolean(self, children: list[Any]) -> _Node:
        token = children[0]
        return _constant(token.upper() == "TRUE", str(token), token.start_pos)

    def null(self, children: list[Any]) -> _Node:
        return _constant(None, str(children[0]), children[0].start_pos)

    def property(self, children: list[Any]) -> _Node:
        name = str(children[0])
        self.names.add(name)
        return _Node(
            Kind.PROPERTY,
            lambda properties: properties.get(name),
            text=name,
            position=children[0].start_pos,
        )


def _constant(value: Value, text: str, position: int, depth: int = 1) -> _Node:
    return _Node(Kind.CONSTANT, lambda _: value, value, text, position, depth)


def _text(quoted: str) -> str:
    return quoted[1:-1].replace("''", "'")
