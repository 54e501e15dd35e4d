"""The JVM's options: a start of four seconds instead of eight, with the same speed after it.

* Late C2: the JVM's second compiler is asked ten times later than by default. In a job's
  first ten seconds it took half of all CPU time for methods that are never hot; what is hot
  for a minute still gets it. (Without it at all, scans of many columns ran slower.)
* The serial collector on one or two cores: collector threads would only take the cores
  from Python's workers.
* A class data archive in the user's cache, made by the first run.
"""

import os
import shutil
import zlib
from pathlib import Path

_LATE_C2 = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def java() -> Path | None:
    """The Java that Spark will start; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return Path(found).resolve() if found and Path(found).exists() else None


def java_options(*, share_classes: bool) -> str:
    """What the JVM of a local session is started with."""
    options = [_LATE_C2]
    if (os.cpu_count() or 1) <= 2:
        options.append("-XX:+UseSerialGC")
    if share_classes:
        options.append(_shared_classes())
    return " ".join(options)


def _shared_classes() -> str:
    """Use this Spark's class data archive, or have this run make it."""
    import pyspark  # noqa: PLC0415  # the rest of the package does without

    executable = java()
    assert executable is not None, "the session has checked"
    # Another Java at the same place would refuse the archive, quietly: it gets its own.
    version = zlib.crc32(f"{executable} {executable.stat().st_mtime_ns}".encode())
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cosmodrome"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"spark-{pyspark.__version__}-{version:08x}.jsa"
    use = "-XX:SharedArchiveFile" if archive.exists() else "-XX:ArchiveClassesAtExit"
    return f"{use}={archive} {_QUIET}"
