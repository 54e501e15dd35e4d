"""The pytest plugin, as a user's tests see it."""

import pytest

pytest_plugins = ["pytester"]

FAILING = """
import cosmodrome

def test_billing(cosmodrome_broker, cosmodrome_names):
    topic, group = cosmodrome_names("orders"), cosmodrome_names("billing")
    cosmodrome_broker.create_group(group)
    with cosmodrome.sync.Producer(cosmodrome_broker.endpoint, topics=[topic]) as producer:
        producer.send(cosmodrome.Message(topic, b"1"))
    with cosmodrome.sync.SimpleConsumer(
        cosmodrome_broker.endpoint, group=group, subscriptions={topic: "*"}
    ) as consumer:
        consumer.receive()
        assert False

def test_time(cosmodrome_virtual_broker):
    from datetime import timedelta
    cosmodrome_virtual_broker.advance(timedelta(days=1))
"""


def test_a_failed_test_says_what_its_broker_still_holds(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*1 in flight, billing-* on orders-*"])
