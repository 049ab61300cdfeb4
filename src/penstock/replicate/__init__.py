"""Copies of topics: from one cluster to another, or within one."""
