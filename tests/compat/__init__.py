"""Official clients, unchanged, on `penstock serve` and on a real Kafka in the same test.

A test is a script: it does something with a client and tells what came of it, as plain data. It runs on both sides at
the same time (`sides.py`), and what the two tell must be equal, but for what `docs/compatibility.md` lists; a listed
difference that is none any more fails as well (`differences.py`). Then the test says what it expects of both.
"""
