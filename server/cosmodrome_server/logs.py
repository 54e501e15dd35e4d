"""How log records are written: a line of text, or one JSON object a line (`server.log_format`).

{"time": "2026-11-21T04:00:00.123Z", "level": "WARNING", "logger": "…", "message": "…"}
"""

import logging
import time

import msgspec


def formatter(log_format: str) -> logging.Formatter:
    """The formatter of `text` or `json`."""
    if log_format == "json":
        return _JsonLines()
    return logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")


class _JsonLines(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # A path that is no text holds surrogates, which JSON does not take.
        plain = {key: text.encode(errors="backslashreplace").decode() for key, text in line.items()}
        return msgspec.json.encode(plain).decode()
