"""PrintThreadStackTrace: ask a client what its threads do."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import BrokerError
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.admin.clients import consumer
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call

_RPC = "PrintThreadStackTrace"


def print_thread_stack_trace(
    context: Context, call: Call, request: admin.PrintThreadStackTraceRequest
) -> None:
    """Relay the question over Telemetry; the call is answered when the client is, or in 5 s.

    Raises:
        BadRequest: No client id.
        NotFound: The client is not there.
        OverloadedError: Too many questions are open.
    """
    session = consumer(context, request.client_id, request.group.name)

    def on_answer(answer: rpc.TelemetryCommand | BrokerError) -> None:
        if isinstance(answer, BrokerError):
            context.reply_late(_RPC, call, answer)
            return
        told = answer.status if answer.HasField("status") else status.OK_STATUS
        shown = admin.PrintThreadStackTraceResponse(
            status=told, thread_stack_trace=answer.thread_stack_trace.thread_stack_trace
        )
        context.reply_late(_RPC, call, shown.SerializeToString(), told.code)

    context.sessions.ask(session.client_id, _command, on_answer)


def _command(nonce: str) -> rpc.TelemetryCommand:
    ask = rpc.PrintThreadStackTraceCommand(nonce=nonce)
    return rpc.TelemetryCommand(print_thread_stack_trace_command=ask)
