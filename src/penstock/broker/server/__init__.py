"""The broker's doors: connections, their order of answers, and the protocols spoken on them.

Everything here runs on one thread, the loop's. What is below `server` knows no protocol and no socket; what is here
keeps no message: it judges bytes, hands them on, and sends stretches of files.
"""
