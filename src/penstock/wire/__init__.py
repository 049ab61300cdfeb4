"""Bytes in, values out, and back: no sockets, threads, clocks or files below this package.

`entry` and `columns` hold the nouns that all systems share, `compression` the codecs; each system's own bytes live in
a package of its own, and these packages do not know each other.
"""
