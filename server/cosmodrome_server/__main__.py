"""The command `cosmodrome`; says what to install where the server's packages are missing."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from cosmodrome_server.cli.root import run  # noqa: PLC0415 - what it needs may be missing
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cosmodrome"):
            raise
        sys.exit(f"{error.name} is missing: pip install 'cosmodrome[server]'")
    run()


if __name__ == "__main__":
    main()
