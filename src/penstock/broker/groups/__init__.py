"""Groups of readers: who belongs to one, which partitions each member reads, and how far the group has come.

Everything here is decided without a clock, a socket or a file: time is an argument, answers go to the callbacks that
came with the questions, and what must last is handed to the store. `coordinator.Groups` is the face of it.
"""
