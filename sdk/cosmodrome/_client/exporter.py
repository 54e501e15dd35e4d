"""Pushes a client's metrics over OTLP to where the broker's settings say.

The export goes like every other call of the client: signed, and over the same connection where
the endpoints are those of a broker. One that fails is tried again with the next minute's numbers.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import grpc
import grpc.aio

from cosmodrome._client import channels
from cosmodrome._client.meters import Meters
from cosmodrome._client.tasks import is_cancelled
from cosmodrome._core import endpoints as endpoint_text
from cosmodrome._core.endpoints import Endpoints
from cosmodrome._core.signature import Metadata
from cosmodrome.config import Tls
from cosmodrome.errors import CosmodromeError
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import fleet_pb2 as wire

_log = logging.getLogger("cosmodrome")
PATH = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
EXPORT_S, EXPORT_TIMEOUT_S = 60.0, 5.0


class Exporter:
    """Exports for as long as the settings ask for it.

    Args:
        meters: What is exported; turned on by `take_settings`.
        headers: Metadata of a call, signed now, and its request id.
        tls: As for every call of the client.
    """

    def __init__(
        self, meters: Meters, headers: Callable[[], tuple[Metadata, str]], tls: Tls | None
    ) -> None:
        self._meters = meters
        self._headers = headers
        self._tls = tls
        self._where: Endpoints | None = None

    def take_settings(self, metric: pb.Metric | None) -> None:
        """The broker says whether it wants metrics, and where; no word changes nothing."""
        if metric is None:
            return
        self._where = None
        if metric.on and metric.endpoints.addresses:
            self._where = endpoint_text.from_wire(metric.endpoints)
            self._meters.turn_on()

    async def run(self) -> None:
        """Export every minute until cancelled."""
        while True:
            await asyncio.sleep(EXPORT_S)
            await self.export()

    async def export(self) -> None:
        """Export now, if the broker wants it; what goes wrong is logged."""
        if self._where is None:
            return
        try:
            await self._send(self._where, self._meters.export())
        except (grpc.aio.AioRpcError, CosmodromeError) as error:
            _log.info("metrics to %s: %s", self._where, error)
        except asyncio.CancelledError:
            if is_cancelled():
                raise

    async def _send(self, where: Endpoints, export: wire.OtlpExport) -> None:
        channel = await channels.borrow(where, self._tls)
        try:
            make = channel.channel.unary_unary(
                PATH,
                request_serializer=wire.OtlpExport.SerializeToString,
                response_deserializer=wire.Accepted.FromString,
            )
            metadata, _ = self._headers()
            await cast("Any", make)(export, timeout=EXPORT_TIMEOUT_S, metadata=metadata)
        finally:
            await channels.give_back(channel, self._tls)
