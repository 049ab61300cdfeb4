"""Real brokers for tests, benchmarks and `make brokers`: started from locked jars, on loopback, never left behind.

Not part of the product and not in its wheel. `sets.toml` names the jars, `locks/` pins them, `jars.py` and `fetch.py`
bring them into a cache that all checkouts share, `process.py` with `guard.py` runs them so that nothing outlives its
owner, `kafka.py` is the first system built on that, `__main__.py` and `service.py` keep one up in the background.
"""
