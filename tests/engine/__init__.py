"""Tests of what touches torch."""
