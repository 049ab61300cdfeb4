"""How to wait: sockets, the poller, the gate, connections and what is known of a cluster.

What to say to a broker is `wire`'s; nothing here knows a system's own words. Time is an argument everywhere, and only
the poller sleeps.
"""
