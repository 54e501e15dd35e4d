"""A real broker inside your tests: the shipped server's code, in this process, on a free port.

    def test_billing(cosmodrome_broker):                      # the pytest plugin's fixture
        with cosmodrome.sync.Producer(cosmodrome_broker.endpoint, topics=["orders"]) as producer:
            producer.send(cosmodrome.Message("orders", b"1"))

    with TestBroker(virtual_time=True) as broker:
        ...                                  # send with a delay of a day
        broker.advance(timedelta(days=1))    # it is there

Any client of any language can use `broker.endpoint`. Needs `pip install 'cosmodrome[server]'`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosmodrome.testing.broker import Leftovers, TestBroker
    from cosmodrome.testing.faults import Fault

__all__ = ["Fault", "Leftovers", "TestBroker"]


def __getattr__(name: str) -> object:
    """Load the broker when somebody wants it: pytest loads the plugin beside it in every run."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from cosmodrome.testing import broker, faults  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("cosmodrome"):
            raise
        raise ModuleNotFoundError(
            f"cosmodrome.testing runs the broker and needs {error.name}: "
            "pip install 'cosmodrome[server]'",
            name=error.name,
        ) from error
    found: object = getattr(faults if name == "Fault" else broker, name)
    return found
