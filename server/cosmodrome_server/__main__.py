"""The command `cosmodrome`; says what to install where the server's packages are missing."""

import gc
import sys


def main() -> None:
    """Run the command line."""
    # Importing makes no garbage, and looking for it takes a tenth of the time; `run` and `serve`
    # enable it again.
    gc.disable()
    try:
        from cosmodrome_server.cli.root import run  # noqa: PLC0415 - what it needs may be missing
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cosmodrome"):
            raise
        sys.exit(f"{error.name} is missing: pip install 'cosmodrome[server]'")
    run()


if __name__ == "__main__":
    main()
