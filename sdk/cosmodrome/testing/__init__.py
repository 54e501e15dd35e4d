"""A real broker inside your tests: the shipped server's code, in this process, on a free port.

    def test_billing(cosmodrome_broker):                      # the pytest plugin's fixture
        with cosmodrome.sync.Producer(cosmodrome_broker.endpoint, topics=["orders"]) as producer:
            producer.send(cosmodrome.Message("orders", b"1"))

    with TestBroker(virtual_time=True) as broker:
        ...                                  # send with a delay of a day
        broker.advance(timedelta(days=1))    # it is there

Any client of any language can use `broker.endpoint`. Needs `pip install 'cosmodrome[server]'`.
"""

from cosmodrome.testing.broker import Leftovers, TestBroker
from cosmodrome.testing.faults import Fault

__all__ = ["Fault", "Leftovers", "TestBroker"]
