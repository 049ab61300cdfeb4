"""Transactions: who may write under a transactional id, what belongs to its transaction, and how that ends."""

from penstock.broker.transactions.coordinator import Transactions
from penstock.broker.transactions.page import Page, State
from penstock.broker.transactions.seams import Enlisting, Marker, PartitionEnd, PendingOffsets, Surroundings

__all__ = ["Enlisting", "Marker", "Page", "PartitionEnd", "PendingOffsets", "State", "Surroundings", "Transactions"]
