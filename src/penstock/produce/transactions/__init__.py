"""Transactions: a block whose messages become visible all at once, or never."""
