"""The conformance checklist of the protocol (30 lines), and where each line is tested.

A line without a test, or a test that was renamed, fails here.
"""

import ast
from pathlib import Path

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.proxy import status

ROOT = Path(__file__).parents[3]
PROXY, BROKER, CORE = "tests/server/proxy/", "tests/server/broker/", "tests/server/core/"
SEND = PROXY + "activities/test_send_message.py"
RECEIVE = PROXY + "activities/test_receive_message.py"
SETTLE = PROXY + "activities/test_settling.py"
TELEMETRY = PROXY + "activities/test_telemetry.py"
TRANSACTIONS = PROXY + "activities/test_transactions.py"
OFFSETS = PROXY + "activities/test_offsets.py"
FRONTS = PROXY + "fronts/test_both_fronts.py"

Where = tuple[str, str]
LINES: dict[int, tuple[str, list[Where]]] = {
    1: (
        "no client id",
        [
            (PROXY + "test_service.py", "test_a_call_without_client_id_is_refused"),
            (TELEMETRY, "test_without_client_id_a_status_is_sent_and_the_stream_ends_well"),
        ],
    ),
    2: (
        "stream order",
        [
            (RECEIVE, "test_status_comes_first_then_messages_then_the_delivery_timestamp"),
            (RECEIVE, "test_an_error_is_a_status_and_then_the_delivery_timestamp"),
        ],
    ),
    3: (
        "empty receive",
        [(RECEIVE, "test_an_empty_receive_is_answered_just_before_its_polling_time_ends")],
    ),
    4: (
        "batch entries",
        [(SEND, "test_a_batch_has_an_entry_per_message_with_its_own_id_and_offset")],
    ),
    5: ("body size", [(SEND, "test_a_send_is_answered")]),
    6: ("properties", [(SEND, "test_a_send_is_answered")]),
    7: ("message group", [(SEND, "test_a_send_is_answered")]),
    8: (
        "delivery time",
        [
            (SEND, "test_a_send_is_answered"),
            (SEND, "test_under_strict_the_delay_limit_is_the_references"),
        ],
    ),
    9: ("tag with a bar", [(SEND, "test_a_send_is_answered")]),
    10: ("type conflict", [(SEND, "test_a_send_is_answered")]),
    11: (
        "missing topic",
        [
            (SEND, "test_a_send_is_answered"),
            (
                PROXY + "activities/test_query_route.py",
                "test_a_missing_topic_is_not_found_unless_topics_are_created_on_first_use",
            ),
        ],
    ),
    12: ("system topic", [(PROXY + "test_names.py", "test_a_topic_may_not_be_called_so")]),
    13: (
        "invisible duration",
        [
            (RECEIVE, "test_an_error_is_a_status_and_then_the_delivery_timestamp"),
            (RECEIVE, "test_the_bounds_of_the_invisible_duration_are_inside"),
            (RECEIVE, "test_with_auto_renew_the_invisible_duration_is_the_servers"),
        ],
    ),
    14: (
        "change to 0",
        [(SETTLE, "test_a_message_made_visible_comes_again_and_suspending_is_no_attempt")],
    ),
    15: (
        "handles",
        [
            (SETTLE, "test_an_ack_twice_is_fine_and_of_nothing_is_not"),
            (SETTLE, "test_acks_that_fail_alike_fail_as_a_whole"),
            (SETTLE, "test_a_change_gives_a_new_handle_and_the_old_one_is_stale"),
        ],
    ),
    16: (
        "attempts and dead letters",
        [
            (
                BROKER + "test_messaging.py",
                "test_an_expired_delivery_comes_again_with_the_next_attempt",
            ),
            (
                BROKER + "test_messaging.py",
                "test_a_message_delivered_as_often_as_allowed_becomes_a_dead_letter_without_a_poll",
            ),
        ],
    ),
    17: (
        "FIFO",
        [
            (
                BROKER + "test_fifo.py",
                "test_a_group_with_a_message_in_flight_is_held_back_and_others_go_on",
            ),
            (
                BROKER + "test_fifo.py",
                "test_a_repeated_receive_takes_its_messages_over_under_new_handles",
            ),
        ],
    ),
    18: (
        "settings",
        [
            (PROXY + "test_settings.py", "test_a_producer_is_told_everything"),
            (
                PROXY + "test_settings.py",
                "test_a_consumer_is_told_what_its_group_says_whatever_it_sent",
            ),
        ],
    ),
    19: (
        "neither publishing nor subscription",
        [(TELEMETRY, "test_settings_the_client_must_change_end_the_stream_as_invalid_argument")],
    ),
    20: (
        "heartbeat before settings",
        [(TELEMETRY, "test_a_client_must_send_settings_before_its_heartbeats_count")],
    ),
    21: (
        "transactions",
        [
            (TRANSACTIONS, "test_a_half_message_is_seen_by_nobody_before_its_commit"),
            (TRANSACTIONS, "test_a_live_producer_is_asked_about_a_half_message_nobody_resolved"),
            (TRANSACTIONS, "test_a_transaction_nobody_began_cannot_end"),
        ],
    ),
    22: (
        "never early",
        [
            (
                BROKER + "test_delays.py",
                "test_a_delayed_message_comes_when_it_is_due_and_not_before",
            )
        ],
    ),
    23: ("recall", [(TRANSACTIONS, "test_a_delayed_message_is_recalled_once")]),
    24: (
        "filters",
        [
            (CORE + "test_filter_expression.py", "test_two_tags_with_one_hash_are_told_apart"),
            (
                CORE + "test_filter_expression_sql.py",
                "test_and_or_and_not_follow_the_three_valued_tables",
            ),
        ],
    ),
    25: (
        "signatures",
        [
            (
                PROXY + "test_service.py",
                "test_with_authentication_on_an_unsigned_call_is_unauthorized",
            ),
            (PROXY + "security/test_signature.py", "test_every_official_spelling_is_genuine"),
        ],
    ),
    26: ("keep-alive", [(FRONTS, "test_a_client_may_ping_often_without_calls")]),
    27: (
        "TLS and plaintext",
        [(FRONTS, "test_tls_is_served"), (FRONTS, "test_plaintext_is_served")],
    ),
    28: (
        "crash",
        [
            ("tests/crash/test_log_kill.py", "test_a_killed_writer_loses_nothing_it_acknowledged"),
            ("tests/server/test_app.py", "test_what_was_acknowledged_is_there_after_a_restart"),
        ],
    ),
    29: (
        "offsets",
        [
            (OFFSETS, "test_offsets_are_found_by_policy"),
            (BROKER + "test_offsets.py", "test_a_new_group_begins_where_it_was_told_to"),
            (
                PROXY + "activities/test_admin.py",
                "test_a_group_is_reset_to_a_time",
            ),
        ],
    ),
    30: (
        "unknown RPCs and enum values",
        [
            (PROXY + "test_service.py", "test_a_method_newer_than_the_server_gets_a_status"),
            (
                SEND,
                "test_what_only_the_server_may_say_is_dropped_and_unknown_fields_survive",
            ),
        ],
    ),
}

# Telemetry ends its stream over this one, with INVALID_ARGUMENT.
NOT_SENT = {"INVALID_CLIENT_PROPERTIES"}


@pytest.mark.parametrize("line", LINES)
def test_the_line_is_tested(line: int) -> None:
    for path, name in LINES[line][1]:
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_all_thirty_lines_are_there() -> None:
    assert sorted(LINES) == list(range(1, 31))


def test_every_code_we_can_send_is_asserted_somewhere() -> None:
    text = "".join(path.read_text() for path in (ROOT / "tests/server").rglob("test_*.py"))
    sent = {pb.Code.Name(pb.Code.ValueType(code)) for code in status.CODES.values()}
    sent |= {"OK", "MULTIPLE_RESULTS", "NOT_IMPLEMENTED"}
    assert {name for name in sent - NOT_SENT if f"pb.{name}" not in text} == set()
