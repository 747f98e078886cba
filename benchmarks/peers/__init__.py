"""Tandem beside other servers on the same machine: ``python -m benchmarks.peers``; see docs/benchmarks.md."""
