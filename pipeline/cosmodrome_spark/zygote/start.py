"""Starting the zygote and the launcher that leads to it; the job's side."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmodrome_spark.zygote import launcher
from cosmodrome_spark.zygote.server import THREADLESS

# A kernel cuts longer first lines of scripts.
_SHEBANG_BYTES_MAX = 120
_GOODBYE_S = 5


class WarmPython:
    """A Python for Spark whose processes are forked from a warm one.

    Attributes:
        executable: What PYSPARK_PYTHON is to say.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="cosmodrome-"))  # only its owner may enter
        self.executable = str(self._folder / "python")
        script = Path(launcher.__file__).read_text(encoding="utf-8")
        Path(self.executable).write_text(f"#!{sys.executable} -SE\n{script}", encoding="utf-8")
        Path(self.executable).chmod(0o700)
        environment = {**os.environ, **THREADLESS}
        # As Spark does for its workers: text hashes alike in all of them.
        environment.setdefault("PYTHONHASHSEED", "0")
        with socket.socket(socket.AF_UNIX) as listener:
            # Launchers that come while the zygote imports wait for it.
            listener.bind(str(self._folder / launcher.SOCKET))
            listener.listen(64)
            number = listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cosmodrome_spark.zygote.server", str(number)],
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=(number,),
            )

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def close(self) -> None:
        """Take no more requests; the zygote ends with its last child."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children stay: they end with Spark
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            if os.environ.get(name) == self.executable:
                del os.environ[name]


def warm_python() -> WarmPython | None:
    """A warm Python, or None where it cannot be: no fork, or no script with our interpreter."""
    if not sys.platform.startswith("linux") or " " in sys.executable:
        return None
    if len(os.fsencode(sys.executable)) > _SHEBANG_BYTES_MAX:
        return None
    warm = WarmPython()
    if not os.access(warm.executable, os.X_OK):  # a folder mounted noexec
        warm.close()
        return None
    return warm
