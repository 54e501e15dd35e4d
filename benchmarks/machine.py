"""What a figure was measured on."""

import os
import platform
import subprocess
from pathlib import Path


def users_environment() -> dict[str, str]:
    """This process's environment, with compiled modules kept as Python keeps them by default.

    Build machines turn that off; then each start compiles 200 modules, which a user's second
    start never does.
    """
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def described() -> dict[str, object]:
    """Processor, cores, memory, kernel, Python, commit."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }
