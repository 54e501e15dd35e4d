"""Compiled filters, kept: clients send the same expression with every receive."""

from cosmodrome_server.core.filter_expression import Everything, compile_filter
from cosmodrome_server.core.machine import Matcher
from cosmodrome_server.model.filter import EVERYTHING, Filter

# As many different filters as any broker sees; beyond it all are compiled anew, once.
COMPILED_MAX = 4_096


class Matchers:
    """Filter → matcher, compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[Filter, Matcher] = {EVERYTHING: Everything()}

    def __len__(self) -> int:
        return len(self._compiled)

    def of(self, expression: Filter) -> Matcher:
        """The matcher of a filter; raises IllegalFilterExpression."""
        matcher = self._compiled.get(expression)
        if matcher is None:
            matcher = compile_filter(expression)
            if len(self._compiled) >= COMPILED_MAX:
                self._compiled.clear()
            self._compiled[expression] = matcher
        return matcher
