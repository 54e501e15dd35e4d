"""`cosmodrome pipeline JOB --config job.toml [--set section.key=value] [--once]`.

Exit codes: 0 done or stopped as asked, 1 failed, 2 a configuration that cannot work.
"""

import logging
from pathlib import Path
from typing import Annotated

import typer

from cosmodrome_spark.errors import (
    InvalidJobConfig,
    InvalidOption,
    MissingDependency,
    PipelineError,
)
from cosmodrome_spark.jobs.registry import JOBS, job
from cosmodrome_spark.session import check_installed

app = typer.Typer(
    name="pipeline",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


# "\b": the lines are kept as they are.
_HELP = "Run a job over topics, on Spark.\n\n\b\n" + "\n".join(
    f"{name:<16}{does}" for name, does in JOBS.items()
)


@app.command(help=_HELP)
def run(
    name: Annotated[str, typer.Argument(metavar="JOB", help="one of those above")],
    config: Annotated[Path | None, typer.Option(help="a TOML file")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, after the file")
    ] = None,
    master: Annotated[str, typer.Option(help="local[*], spark://…, yarn, k8s://…")] = "",
    metrics_port: Annotated[int | None, typer.Option(help="serve Prometheus gauges")] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="read what is there now, then end")] = False,
) -> None:
    """Run a job."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if name not in JOBS:
        typer.echo(f"cosmodrome pipeline: no job {name!r}; there are {', '.join(JOBS)}", err=True)
        raise typer.Exit(2)
    try:
        code = _run(name, config, [*(sets or ()), *_session(master)], (once, metrics_port))
    except (InvalidJobConfig, InvalidOption, MissingDependency) as error:
        typer.echo(f"cosmodrome pipeline {name}: {error}", err=True)
        raise typer.Exit(2) from error
    except PipelineError as error:
        typer.echo(f"cosmodrome pipeline {name} failed: {error}", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(code)


def _run(name: str, config: Path | None, sets: list[str], how: tuple[bool, int | None]) -> int:
    check_installed()
    from pyspark.errors import PySparkException  # noqa: PLC0415  # just checked

    from cosmodrome_spark.jobs.config import load  # noqa: PLC0415  # needs pyarrow, Spark
    from cosmodrome_spark.jobs.run import context_for, stop_on_signals  # noqa: PLC0415  # both

    once, metrics_port = how
    context = context_for(load(name, config, sets), once=once, metrics_port=metrics_port)
    with stop_on_signals(context.stopping):
        try:
            return job(name)(context)
        except PySparkException as error:
            raise told_by_spark(str(error)) from error
        finally:
            context.close()


def told_by_spark(failure: str) -> PipelineError:
    """What went wrong, of a traceback that Spark hands over as text."""
    from cosmodrome_spark.jobs.run import cause_of  # noqa: PLC0415  # needs Spark

    cause = cause_of(failure)
    kind, _, said = cause.partition(": ")
    for each in (InvalidOption, InvalidJobConfig):
        if kind == each.__name__:
            return each(said)
    return PipelineError(cause)


def _session(master: str) -> list[str]:
    return [f"session.master={master}"] if master else []
