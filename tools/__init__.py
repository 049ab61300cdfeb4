"""What the Makefile's verbs run; not part of the product."""
