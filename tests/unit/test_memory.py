"""How many KV pages are allocated."""

from __future__ import annotations

from engine.memory import GIB, free_host_bytes, kv_pages


def test_the_containers_limit_counts_if_it_is_lower(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  4096 kB\n")
    assert free_host_bytes(tmp_path, tmp_path) == 4096 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_host_bytes(tmp_path, tmp_path) == 4096 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    assert free_host_bytes(tmp_path, tmp_path) == 2000
    (tmp_path / "memory.stat").write_text("anon 900\ninactive_file 400\nactive_file 7\n")
    assert free_host_bytes(tmp_path, tmp_path) == 2400
    (tmp_path / "memory.stat").unlink()
    (tmp_path / "memory.current").write_text("4000\n")
    assert free_host_bytes(tmp_path, tmp_path) == 0


def test_pages_from_the_options_or_from_what_is_free():
    assert kv_pages(1000, pages=7, gib=1.0, free_bytes=0) == 7
    assert kv_pages(GIB // 4, pages=None, gib=1.5, free_bytes=0) == 6
    assert kv_pages(GIB, pages=None, gib=None, free_bytes=12 * GIB) == 3
    assert kv_pages(GIB, pages=None, gib=None, free_bytes=900 * GIB) == 8
    assert kv_pages(GIB, pages=None, gib=None, free_bytes=GIB) == 1
