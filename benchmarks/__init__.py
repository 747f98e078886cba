"""Measurements. Each script prints what it measured and how to repeat it."""
