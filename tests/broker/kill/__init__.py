"""`penstock serve` killed with `kill -9` at random moments, under the load of clients that go on by themselves.

`load.py` and `copying.py` are the clients: each knows what it was told and checks, when all is over, what the broker
holds against that. `raid.py` kills and restarts. `test_faults.py` is about other disasters: disk, clock, crowds.
"""
