"""The zygote: imports what Spark's Python processes need, then forks one for each request.

    python -m cosmodrome_spark.zygote.server LISTENER      stdin: open while the job lives

One loop waits for requests, for children that ended (their code goes to their launcher) and
for launchers that were killed (their child is killed too). When the job's end of stdin closes
no more requests are taken; the zygote goes when its last child has gone.

A process with threads must not be forked, so nothing here may start one: no channel, no
pool; pyarrow's allocator and numpy's algebra are told to do without. `main` counts them and
gives up if there are any; launchers then start plain Pythons.
"""

import gc
import importlib
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

_log = logging.getLogger(__name__)
# What the workers import anyway; what a version of pyspark does not have is left out.
WARM = (
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.pandas.serializers",
    "pyspark_rocketmq",
    "cosmodrome_spark.lake.files",
)
REQUEST_BYTES_MAX = 1 << 20
# A launcher sends at once; one that does not must not keep the others waiting. The kernel's
# timeout, because a socket that Python times does not wait for all of a request.
REQUEST_TIMEOUT = Struct("ll").pack(5, 0)
# The environment of a process that may be forked: these start no threads.
THREADLESS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


@dataclass(frozen=True, slots=True)
class Request:
    """A process that a launcher asks for."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: list[int]


@dataclass(slots=True)
class Zygote:
    """The loop; `serve` returns in each child, with what it is to run.

    Attributes:
        listener: Where launchers come.
        children: Process id → its launcher's connection.
    """

    listener: socket.socket
    children: dict[int, socket.socket] = field(default_factory=dict)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def serve(self) -> Request | None:
        """Fork on request; None in the zygote itself, when the job has ended."""
        woken, wake = socket.socketpair()
        wake.setblocking(False)  # noqa: FBT003 - its own signature
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self.selector.register(self.listener, selectors.EVENT_READ, self.listener)
        self.selector.register(woken, selectors.EVENT_READ, woken)
        self.selector.register(0, selectors.EVENT_READ, 0)
        has_job = True
        while has_job or self.children:
            for key, _ in self.selector.select():
                if key.data is self.listener:
                    request = self._accept()
                    if request is not None:
                        self._leave(woken, wake)
                        return request
                elif key.data is woken:
                    woken.recv(4096)
                    self._reap()
                elif key.data == 0:
                    has_job = False
                    self.selector.unregister(0)
                    self.selector.unregister(self.listener)
                    self.listener.close()
                elif key.data in self.children:
                    self._kill(key.data)
        return None

    def _accept(self) -> Request | None:
        """Fork for one launcher; the request in the child, None in the zygote."""
        connection, _ = self.listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, REQUEST_TIMEOUT)
        try:
            request = read_request(connection)
        except ValueError:
            connection.close()
            return None
        if request.environment.get("PYTHONHASHSEED") not in {None, os.environ["PYTHONHASHSEED"]}:
            # Its text would hash otherwise than that of other workers.
            _close(request.descriptors)
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            connection.close()
            return request
        _close(request.descriptors)
        self.children[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        with suppress(OSError):
            connection.sendall(pid.to_bytes(4, "big"))
        return None

    def _reap(self) -> None:
        """Tell the launchers of children that ended."""
        for pid in list(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = self.children.pop(pid)
                with suppress(KeyError):
                    self.selector.unregister(connection)
                with suppress(OSError):
                    connection.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
                connection.close()

    def _kill(self, pid: int) -> None:
        """A launcher is gone, so its child has to go."""
        self.selector.unregister(self.children[pid])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _leave(self, *more: socket.socket) -> None:
        """In a child: let go of everything that is the zygote's."""
        signal.set_wakeup_fd(-1)
        self.selector.close()
        for each in (self.listener, *more, *self.children.values()):
            each.close()


def read_request(connection: socket.socket) -> Request:
    """Take one request; raises ValueError when it is none."""
    descriptors: list[int] = []
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        size = int.from_bytes(head, "big")
        if len(head) < 4 or len(descriptors) < 3 or size > REQUEST_BYTES_MAX:
            raise ValueError("not a launcher's request")
        said = json.loads(connection.recv(size, socket.MSG_WAITALL))
        return Request(**said, descriptors=descriptors)
    except (OSError, ValueError, TypeError) as error:
        _close(descriptors)
        raise ValueError(f"not a launcher's request: {error}") from error


def become(request: Request) -> None:
    """Be the process that was asked for, as if Python had just started it."""
    for number, descriptor in enumerate(request.descriptors):
        os.dup2(descriptor, number)
    _close(request.descriptors)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    for name in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    added = [each for each in request.environment.get("PYTHONPATH", "").split(":") if each]
    sys.path[:] = list(dict.fromkeys([request.folder, *added, *sys.path[1:]]))
    sys.argv[:] = request.arguments
    # Python's own are buffered otherwise: Spark sets PYTHONUNBUFFERED.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for good
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - for good
    runpy.run_module(request.arguments[0], run_name="__main__", alter_sys=True)


def warm_up() -> None:
    """Import what every child would."""
    # pyspark's worker modules refuse to be imported elsewhere when Spark tests itself.
    os.environ["SPARK_PYTHON_RUNTIME"] = "PYTHON_WORKER"
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    # What is alive now lives for ever: a collector that wrote to it would unshare its pages.
    gc.freeze()


def main() -> None:
    """Warm up, fork; in a child, run what was asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    warm_up()
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        _log.warning("the zygote has threads: Spark's workers start without it")
        return
    request = Zygote(listener).serve()
    if request is not None:
        become(request)


def _close(descriptors: list[int]) -> None:
    for each in descriptors:
        os.close(each)


if __name__ == "__main__":
    main()
