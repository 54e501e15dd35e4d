"""Log records as text and as JSON lines."""

import json
import logging
import sys
from typing import Any

from cosmodrome_server import logs


def _record(exc_info: Any = None) -> logging.LogRecord:
    record = logging.LogRecord("shop", logging.WARNING, "f.py", 1, "%d left", (3,), exc_info)
    record.created, record.msecs = 1_767_323_045.25, 250.0
    return record


def test_a_json_record_is_one_object_a_line_in_utc() -> None:
    line = logs.formatter("json").format(_record())
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-02T03:04:05.250Z",
        "level": "WARNING",
        "logger": "shop",
        "message": "3 left",
    }


def test_a_json_record_keeps_its_traceback_in_the_same_line() -> None:
    try:
        raise KeyError("lost")
    except KeyError:
        line = logs.formatter("json").format(_record(sys.exc_info()))
    assert "\n" not in line
    assert "KeyError: 'lost'" in json.loads(line)["exception"]


def test_text_is_one_readable_line() -> None:
    assert logs.formatter("text").format(_record()).endswith("WARNING shop 3 left")


def test_a_json_record_takes_a_path_that_is_no_text() -> None:
    record = logging.LogRecord("shop", logging.WARNING, "f.py", 1, "in %s", ("d\udcff",), None)
    assert json.loads(logs.formatter("json").format(record))["message"] == "in d\\udcff"
