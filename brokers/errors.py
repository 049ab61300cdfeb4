"""What can go wrong with a real broker.

    BrokerError                   the broker does not run as asked
      BrokerUnavailableError      this machine lacks a Java or the jars: tests skip, unless PENSTOCK_REQUIRE_ALL is set

Every text is one line that says what is missing and what to do.
"""


class BrokerError(Exception):
    """A real broker cannot be had as asked; the text says why and what to do."""


class BrokerUnavailableError(BrokerError):
    """No real broker can run on this machine at all."""
