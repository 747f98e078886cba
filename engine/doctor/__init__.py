"""``tandem doctor``: what the machine offers, and what would make Tandem faster on it."""
