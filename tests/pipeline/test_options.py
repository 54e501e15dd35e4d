from pathlib import Path

import pytest

from cosmodrome_spark.errors import InvalidOption
from cosmodrome_spark.offsets import MessageQueue
from cosmodrome_spark.option_table import OPTIONS
from cosmodrome_spark.options import sink_options, source_options
from cosmodrome_spark.source.data_source import RocketMQDataSource

ROOT = Path(__file__).parents[2]
BASE = {"endpoints": "127.0.0.1:8081", "subscribe": "orders"}


def test_names_compare_without_case_as_spark_hands_them_over() -> None:
    options = source_options({**BASE, "maxoffsetspertrigger": "7"}, streaming=True)

    assert options.max_offsets == 7


def test_streams_begin_at_the_end_and_batches_at_the_beginning() -> None:
    assert source_options(BASE, streaming=True).starting.word == "latest"
    assert source_options(BASE, streaming=False).starting.word == "earliest"


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidOption, match="did you mean failOnDataLoss"):
        source_options({**BASE, "failOnDatLoss": "false"}, streaming=True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"subscribe": "a", "assign": '{"a": {"b": [0]}}'}, "exactly one"),
        ({"endpoints": "nowhere"}, "host:port"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "above zero"),
        ({"startingOffsets": '{"orders": {"b:0": -3}}'}, "at least 0"),
        ({"columns": "body,tga"}, "did you mean 'tag'"),
        ({"startingOffsets": "group"}, "needs the option group"),
        ({"reportGroupOffsets": "true"}, "needs the option group"),
        ({"endingOffsets": "latest"}, "does not apply to a streaming read"),
        ({"topic": "out"}, "does not apply to a streaming read"),
        ({"accessKey": "me"}, "come together"),
        ({"batchBytes": "8 floppies"}, "expected bytes"),
        ({"batchBytes": "0"}, "above zero"),
        ({"readMode": "segments", "filter": "odd"}, "takes no filter"),
        ({"readMode": "bulk", "verifyDigest": "true"}, "verifyDigest"),
        ({"subscribePattern": "("}, "regular expression"),
    ],
)
def test_a_bad_option_says_what_was_expected(given: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        source_options({**BASE, **given}, streaming=True)


def test_letters_are_refused_where_a_message_that_is_refused_fails_the_task() -> None:
    aside = {"onError": "deadLetterPath", "deadLetterPath": "letters"}
    with pytest.raises(InvalidOption, match="onError=deadLetterPath does not apply"):
        sink_options({"endpoints": "h:1", "dedup": "transaction", **aside})


def test_a_rate_is_refused_where_a_batch_becomes_visible_at_once() -> None:
    with pytest.raises(InvalidOption, match="rateLimit does not apply"):
        sink_options({"endpoints": "h:1", "dedup": "transaction", "rateLimit": "9"})


@pytest.mark.parametrize("columns", ["queue_ofset", "body,body", ","])
def test_columns_that_are_none_are_refused_by_the_options_name(columns: str) -> None:
    source = RocketMQDataSource({**BASE, "columns": columns})

    with pytest.raises(InvalidOption, match="option columns"):
        source.schema()


def test_sizes_and_durations_carry_units() -> None:
    options = source_options(
        {**BASE, "maxBytesPerTrigger": "64MiB", "maxTriggerDelay": "2m"}, streaming=True
    )

    assert options.max_bytes == 64 << 20
    assert options.max_trigger_delay_ms == 120_000


def test_single_queues_are_assigned_by_json() -> None:
    given = {"endpoints": "h:1", "assign": '{"orders": {"broker-a": [1, 0]}}'}

    queues = source_options(given, streaming=False).topics.queues

    assert queues == (MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1))


def test_a_secret_is_not_printed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("me\nhush\n")

    connection = source_options({**BASE, "credentialsFile": str(keys)}, streaming=False).connection

    assert connection.secret_key == "hush"
    assert "hush" not in repr(connection)


def test_a_sink_asks_for_smaller_requests_than_a_source_reads() -> None:
    assert sink_options({"endpoints": "h:1"}).batch_bytes == 1 << 20
    assert sink_options({"endpoints": "h:1", "batchBytes": "2MiB"}).batch_bytes == 2 << 20


def test_every_option_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text()

    assert [option.name for option in OPTIONS if f"| `{option.name}` |" not in page] == []
