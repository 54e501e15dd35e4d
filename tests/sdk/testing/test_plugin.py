"""The pytest plugin, as a user's tests see it."""

import pytest

pytest_plugins = ["pytester"]

FAILING = """
import cosmodrome

def test_billing(cosmodrome_broker, cosmodrome_names):
    topic, group = cosmodrome_names("orders"), cosmodrome_names("billing")
    cosmodrome_broker.create_group(group)
    with cosmodrome.sync.Producer(cosmodrome_broker.endpoint, topics=["elsewhere"]) as producer:
        producer.send(cosmodrome.Message("elsewhere", b"1"))
    with cosmodrome.sync.SimpleConsumer(
        cosmodrome_broker.endpoint, group="elsewhere", subscriptions={"elsewhere": "*"}
    ) as consumer:
        consumer.receive()
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
    result.stdout.no_fnmatch_line("*in flight, elsewhere*")


CLOSING = """
def test_closing(cosmodrome_virtual_broker):
    cosmodrome_virtual_broker.close()
    assert False

def test_another():
    pass
"""


def test_a_failed_test_may_have_closed_its_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CLOSING)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, passed=1)


WITHOUT_SERVER = """
import sys
import pytest

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "msgspec":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_pytest_runs_where_the_broker_is_not_installed_and_says_what_a_fixture_needs(
    pytester: pytest.Pytester,
) -> None:
    """A plain `pip install cosmodrome` brings the plugin, not what the broker needs."""
    run = pytester.makepyfile(run=WITHOUT_SERVER)
    tests = pytester.makepyfile(
        test_them="def test_theirs(): pass\ndef test_ours(cosmodrome_broker): pass\n"
    )
    result = pytester.runpython_c(
        f"import runpy, sys; sys.argv[1:] = [{str(tests)!r}]; "
        f"runpy.run_path({str(run)!r}, run_name='__main__')"
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*pip install 'cosmodrome?server?'*"])
