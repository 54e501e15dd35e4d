"""Every error the pipeline raises on purpose.

    PipelineError
    ├── InvalidOption           an option that is unknown, malformed, or contradicts another
    ├── InvalidJobConfig        the same for a job's configuration
    ├── DataLoss                a range that was promised is not there any more
    ├── BrokerRefused           the broker answered with an error status
    │   ├── BrokerBusy
    │   └── TopicNotFound
    ├── BrokerUnreachable       no answer; the same call may succeed later
    ├── UnsupportedByServer     a road or a guarantee that needs a Cosmodrome server
    ├── TableConflict           a lake table that belongs to another job, or changed underneath
    └── MissingDependency       a package or a Java that this part needs

Messages say what happened, why, and which option decides; lower case, no full stop.
"""


class PipelineError(Exception):
    """Anything the pipeline refuses or cannot do, said on purpose."""


class InvalidOption(PipelineError, ValueError):
    """An option is unknown, malformed, or contradicts another."""


class InvalidJobConfig(PipelineError, ValueError):
    """A job's configuration is unknown, malformed, or contradicts itself."""


class DataLoss(PipelineError):
    """Offsets that were to be read are gone: retention, a deleted queue, an unexplained gap."""


class BrokerRefused(PipelineError):
    """The broker answered with an error status.

    Attributes:
        code: The number of the protocol's `Code`.
    """

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the keyword: Spark carries errors from executors to the driver."""
        return (_refused, (type(self), str(self), self.code))


class BrokerBusy(BrokerRefused):
    """The broker has too much to do just now; the same call may succeed later."""


class TopicNotFound(BrokerRefused):
    """The topic does not exist, or exists no more."""


class BrokerUnreachable(PipelineError):
    """The broker did not answer; the same call may succeed later."""


class UnsupportedByServer(PipelineError):
    """The server lacks the extension that a road or a guarantee needs."""


class TableConflict(PipelineError):
    """A lake table belongs to another job or lineage, or changed underneath a commit."""


class MissingDependency(PipelineError):
    """A package or a Java that this part needs is not installed."""


def _refused(kind: type[BrokerRefused], message: str, code: int) -> BrokerRefused:
    return kind(message, code=code)
