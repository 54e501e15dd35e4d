"""What the broker tells the proxy, passed on to clients: over Telemetry, and to who waits."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.model.message import StoredMessage
from cosmodrome_server.proxy.convert import to_message
from cosmodrome_server.proxy.sessions import Sessions
from cosmodrome_server.proxy.waits import Waits


class ClientEvents:
    """`BrokerEvents` over the sessions. Until `connect` there is nobody to tell.

    Args:
        waits: The receives and pulls that wait.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._sessions: Sessions | None = None
        self._store_host = b""

    def connect(self, sessions: Sessions, store_host: bytes) -> None:
        """Tell these clients from now on; `store_host` as in `Context`."""
        self._sessions = sessions
        self._store_host = store_host

    def check_transaction(self, message: StoredMessage, transaction_id: str) -> bool:
        """Ask one live producer of the topic; False if there is none."""
        if self._sessions is None:
            return False
        shown = to_message(message, self._store_host)
        ask = rpc.RecoverOrphanedTransactionCommand(message=shown, transaction_id=transaction_id)
        command = rpc.TelemetryCommand(recover_orphaned_transaction_command=ask)
        return self._sessions.ask_producer(message.topic, command)

    def topic_changed(self, name: str) -> None:
        """Push settings to those who use the topic; who waits for it asks again."""
        self._waits.topic_changed(name)
        if self._sessions is not None:
            self._sessions.push_topic(name)

    def group_changed(self, name: str) -> None:
        """Push settings to the members of the group; who waits for it asks again."""
        self._waits.group_changed(name)
        if self._sessions is not None:
            self._sessions.push_group(name)

    def lite_unsubscribed(self, client_id: str, group: str, lite_topic: str) -> None:  # noqa: ARG002 - the client knows its group
        """Tell a client that another took a lite topic over."""
        if self._sessions is not None:
            notice = rpc.NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
            self._sessions.send(
                client_id, rpc.TelemetryCommand(notify_unsubscribe_lite_command=notice)
            )
