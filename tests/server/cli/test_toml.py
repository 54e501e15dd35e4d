"""What is written as TOML reads back as it was."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.cli.toml import literal

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_reads_back(value: object) -> None:
    assert tomllib.loads(f"value = {literal(value)}") == {"value": value}
