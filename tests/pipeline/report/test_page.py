import datetime as dt
from xml.etree import ElementTree as ET

import pytest

from cosmodrome_spark.jobs.lag import report_page, summary
from cosmodrome_spark.report.page import Section, page, table
from cosmodrome_spark.report.plot import bars, lines


def test_a_plot_is_well_formed_and_draws_every_series() -> None:
    drawn = lines({"a": [(0, 1), (1, 5)], "b": [(0, 2), (1, 0)]}, unit="ms", x="time")

    assert len(ET.fromstring(drawn).findall("polyline")) == 2


def test_a_bar_for_each_value_and_the_largest_is_full() -> None:
    rects = ET.fromstring(bars({"x": 50.0, "y": 100.0}, unit="n")).findall("rect")

    heights = [float(each.attrib["height"]) for each in rects]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)


@pytest.mark.parametrize("made", [lines({}, unit="ms", x="t"), bars({}, unit="n"), table([])])
def test_nothing_to_show_is_said_so(made: str) -> None:
    assert "nothing" in made


def test_names_of_topics_and_reasons_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>"

    made = page(
        evil, evil, [Section(evil, evil, table([{evil: evil}]) + bars({evil: 1.0}, unit=evil))]
    )

    assert "<script" not in made


def sample(seconds: int, committed: int, end: int) -> list[dict[str, object]]:
    return [
        {
            "sampled_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds),
            "consumer_group": "billing",
            "topic": "orders",
            "broker": "b",
            "queue_id": 0,
            "end_offset": end,
            "committed_offset": committed,
            "lag": end - committed,
        }
    ]


def test_when_a_group_will_have_caught_up() -> None:
    (told,) = summary([sample(0, 0, 1000), sample(10, 300, 1100)])

    assert (told["lag"], told["consumed_per_s"], told["produced_per_s"]) == (800, 30.0, 10.0)
    assert told["eta_s"] == 40


def test_a_queue_on_which_nothing_moves_is_stuck() -> None:
    (told,) = summary([sample(0, 5, 10), sample(10, 5, 20)])

    assert (told["eta_s"], told["stuck"]) == (-1, [0])
    assert "polyline" in report_page([sample(0, 5, 10), sample(10, 5, 20)])
