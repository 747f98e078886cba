"""Accelerators: streams of operations, events between them, copies, and pages of their own."""
