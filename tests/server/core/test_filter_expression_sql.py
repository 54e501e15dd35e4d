import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.core.filter_expression_sql import (
    EXPRESSION_CHARS_MAX,
    NESTING_MAX,
    compile_sql,
)
from cosmodrome_server.errors import IllegalFilterExpression

PROPERTIES = {
    "five": "5",
    "five_and_half": "5.5",
    "big": "3000000000",
    "word": "abc",
    "yes": "TRUE",
    "no": "nope",
    "other_word": "abc",
    "$dollar_1": "x",
    "quote": "it's",
}

# protocol.md 10.5, and 10.4 for the shapes.
MATCHING = [
    # literals and bare conditions
    "TRUE",
    "true",
    # equality
    "five = 5",
    "five = 5.0",
    "five = 5L",
    "five_and_half = 5.5",
    "five_and_half = .55E1",
    "word = 'abc'",
    "'abc' = word",
    "word = other_word",
    "word <> 'abd'",
    "quote = 'it''s'",
    "$dollar_1 = 'x'",
    "yes = TRUE",
    "TRUE = yes",
    "no = FALSE",
    "FALSE = no",
    "absent = missing",
    "'x' <> absent",
    "5 = 5.0",
    "5 <> 6",
    "'a' = 'a'",
    "TRUE = TRUE",
    "(five = 5) = TRUE",
    # order
    "five > 4",
    "five >= 5",
    "five < 5.5",
    "five <= 5",
    "five_and_half > 5",
    "big > 2147483647",
    "five < five_and_half",
    "4 < five",
    "five > -1",
    "five > +4",
    "five = - - 5",
    # null
    "absent IS NULL",
    "five is not null",
    "NOT (five IS NULL)",
    # logic
    "five = 5 AND word = 'abc'",
    "five = 6 OR word = 'abc'",
    "absent = 1 OR five = 5",
    "NOT (five = 6)",
    "NOT five = TRUE",
    "five = 6 AND five = 5 OR five = 5",
    "five = 5 OR word > 1",
    # text
    "word CONTAINS 'b'",
    "word startswith 'ab'",
    "word ENDSWITH 'bc'",
    "word NOT CONTAINS 'z'",
    "word NOT STARTSWITH 'b'",
    "word NOT ENDSWITH 'a'",
    "NOT (absent CONTAINS 'x')",
    "'abc' CONTAINS 'b'",
    # ranges and lists
    "five BETWEEN 5 AND 5",
    "five BETWEEN 1 AND 10 AND word = 'abc'",
    "five NOT BETWEEN 6 AND 10",
    "five NOT BETWEEN 1 AND 4",
    "5 BETWEEN 4 AND five_and_half",
    "word IN ('x', 'abc')",
    "word NOT IN ('x', 'y')",
    # layout
    "five=5 -- the rest is a comment",
    "/* before */ five\n=\t5",
    "nota IS NULL AND order_ IS NULL AND inx IS NULL",
    "((((five)))) = 5",
]

NOT_MATCHING = [
    "FALSE",
    "NULL",
    "word",
    "absent",
    "NOT absent",
    "five = 6",
    "absent = 5",
    "absent <> 5",
    "5 = absent",
    "word = 'ABC'",
    "five = '5.0'",
    "word = 5",
    "word <> 5",
    "word > 1",
    "NOT (word > 1)",
    "word > five",
    "absent > 1",
    "NOT (absent > 1)",
    "1 < absent",
    "no = TRUE",
    "yes <> TRUE",
    "five = 5 AND absent = 1",
    "five = 6 AND absent = 1",
    "absent = 1 OR five = 6",
    "NOT (absent = 1)",
    "absent IS NOT NULL",
    "absent CONTAINS 'x'",
    "absent NOT CONTAINS 'x'",
    "word CONTAINS ''",
    "word NOT CONTAINS ''",
    "5 CONTAINS '5'",
    "five BETWEEN 6 AND 7",
    "five NOT BETWEEN 1 AND 7",
    "absent BETWEEN 1 AND 7",
    "absent NOT BETWEEN 1 AND 7",
    "five BETWEEN absent AND 7",
    "absent IN ('x')",
    "absent NOT IN ('x')",
    "word NOT IN ('abc')",
    "-five = -5",
    "-five <> 1",
    "-TRUE = 1",
    "Word = 'abc'",
    "(five = 5) = 5",
    "five = 5 AND word > 1",
    "five > 1 AND underscore = 1",
    "yes > 1",
]

REFUSED = [
    ("", "must not be empty"),
    ("  \n", "must not be empty"),
    ("5", "position 0: 5 is not a condition"),
    ("'x'", "is not a condition"),
    ("-five", "is not a condition"),
    ("five = 5 AND 'x'", "position 13: 'x' is not a condition"),
    ("NOT 5", "position 4: 5 is not a condition"),
    ("five >", "ends too early, at position 6"),
    ("five = 5 word", "position 9"),
    ("five != 5", "position 5.*not equal is <>"),
    ("five == 5", "position 6"),
    ("five = 1 + 4", "position 9.*no arithmetic"),
    ("word LIKE 'a%'", "position 5.*there is no LIKE"),
    ('word = "abc"', "position 7.*single quotes"),
    ("five = 05", "position 8"),
    ("a.b = 1", "position 1"),
    ("five > 'x'", "position 7: 'x' cannot be compared by order"),
    ("TRUE < five", "position 0: TRUE cannot be compared by order"),
    ("five >= NULL", "position 8: NULL cannot be compared by order"),
    ("(five = 5) > 1", "is a condition and cannot be compared"),
    ("five = NULL", "position 7: NULL cannot be compared; use IS NULL"),
    ("NULL <> five", "use IS NULL"),
    ("TRUE = 5", "position 7: 5 cannot be compared with TRUE"),
    ("'x' <> FALSE", "cannot be compared with 'x'"),
    ("five BETWEEN 6 AND 5", "position 13: 6 is above 5"),
    ("five BETWEEN NULL AND 5", "NULL cannot be compared"),
    ("five BETWEEN 'a' AND 'b'", "cannot be compared"),
    ("5 IN ('5')", "position 0: 5 is not a property"),
    ("five IN ()", "position 9"),
    ("five IN (5)", "position 9"),
    ("five = 9223372036854775808", "position 7.*does not fit 64 bits"),
    (f"five > {'9' * 5_000}L", "position 7: 9{40}… does not fit 64 bits, 9223372036854775807 is"),
    ("five = 1E999", "position 7.*too large"),
    ("word = 'abc", "position 7"),
    ("five = 5)", "position 8"),
    ("/* open", "position 0"),
]


@pytest.mark.parametrize("expression", MATCHING)
def test_an_expression_that_is_true_matches(expression: str) -> None:
    assert compile_sql(expression).matches(PROPERTIES) is True


@pytest.mark.parametrize("expression", NOT_MATCHING)
def test_an_expression_that_is_false_unknown_or_fails_does_not_match(expression: str) -> None:
    assert compile_sql(expression).matches(PROPERTIES) is False


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_a_bad_expression_is_refused_with_position_and_reason(expression: str, reason: str) -> None:
    with pytest.raises(IllegalFilterExpression, match=f"(?s){reason}"):
        compile_sql(expression)


# NULL stands for unknown.
TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}


@pytest.mark.parametrize("left", TRUTHS)
@pytest.mark.parametrize("right", TRUTHS)
def test_and_or_and_not_follow_the_three_valued_tables(left: str, right: str) -> None:
    a, b = TRUTHS[left], TRUTHS[right]
    both = False if False in (a, b) else None if None in (a, b) else True
    either = True if True in (a, b) else None if None in (a, b) else False

    def is_true(expression: str) -> bool:
        return compile_sql(expression).matches({})

    assert is_true(f"{left} AND {right}") is (both is True)
    assert is_true(f"NOT ({left} AND {right})") is (both is False)
    assert is_true(f"{left} OR {right}") is (either is True)
    assert is_true(f"NOT ({left} OR {right})") is (either is False)


@pytest.mark.parametrize("text", ["1_0", " 5", "\u0665", "nan", "inf", "1e999", "0x10", ""])
def test_only_plain_numbers_are_numbers(text: str) -> None:
    assert not compile_sql("a > -99999").matches({"a": text})
    assert not compile_sql("NOT (a > -99999)").matches({"a": text})


def test_the_properties_an_expression_looks_at_are_known() -> None:
    assert compile_sql("a = 1 OR NOT b IS NULL AND c IN ('x')").names == {"a", "b", "c"}


@pytest.mark.parametrize("wrap", ["({})", "NOT {}", "- {}"])
def test_deep_nesting_is_refused_and_does_not_end_the_process(wrap: str) -> None:
    expression = "a"
    for _ in range(NESTING_MAX + 1):
        expression = wrap.format(expression)
    with pytest.raises(IllegalFilterExpression, match=f"deeper than {NESTING_MAX}"):
        compile_sql(expression)


def test_a_long_expression_is_refused_and_a_long_list_of_alternatives_is_not() -> None:
    many = " OR ".join(f"a = {n}" for n in range(1_000))
    assert compile_sql(many).matches({"a": "999"})
    with pytest.raises(IllegalFilterExpression, match="characters"):
        compile_sql("a = 1 " + " " * EXPRESSION_CHARS_MAX)


@given(st.text(max_size=40))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        compile_sql(text).matches({"a": "1"})
    except IllegalFilterExpression:
        return


OPERANDS = st.sampled_from(["a", "b", "5", "5.5", "'x'", "TRUE", "NULL", "-a", "(a = 1)"])
SHAPES = st.sampled_from(
    [
        "{} = {}",
        "{} <> {}",
        "{} > {}",
        "{} AND {}",
        "{} OR {}",
        "NOT {} = {}",
        "{} BETWEEN {} AND 7",
    ]
)


@given(SHAPES, OPERANDS, OPERANDS, st.dictionaries(st.sampled_from("ab"), st.text(max_size=3)))
def test_an_expression_never_matches_together_with_its_negation(
    shape: str, left: str, right: str, properties: dict[str, str]
) -> None:
    expression = shape.format(left, right)
    try:
        matches = compile_sql(expression).matches(properties)
        opposite = compile_sql(f"NOT ({expression})").matches(properties)
    except IllegalFilterExpression:
        return
    assert not (matches and opposite)
