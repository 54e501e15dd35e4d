"""The page keeps what the other front's run said."""

from tests.conformance.report import FRONTS_HEAD, _front_lines, with_fronts

PAGE = "# Conformance\n\nsummary\n\n## Client start-up\n\n| # | case |\n"


def test_the_fronts_have_a_section_before_the_tables_and_each_run_its_line() -> None:
    first = with_fronts(PAGE, {"gate": "| gate | ✔ 1 |"})
    known = _front_lines(first)
    assert known == {"gate": "| gate | ✔ 1 |"}
    second = with_fronts(first, {**known, "grpcio": "| grpcio | ✔ 2 |"})
    assert _front_lines(second) == {"gate": "| gate | ✔ 1 |", "grpcio": "| grpcio | ✔ 2 |"}
    assert second.count(FRONTS_HEAD) == 1
    assert second.index(FRONTS_HEAD) < second.index("## Client start-up")
    assert second.endswith("\n\n## Client start-up\n\n| # | case |\n")
