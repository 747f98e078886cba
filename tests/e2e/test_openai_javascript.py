"""The official JavaScript SDK from npm, unchanged. Needs node and a package registry, so it is slow."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon

HERE = Path(__file__).parent / "javascript"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_javascript_sdk(daemon: Daemon, tmp_path: Path):
    for name in ("package.json", "sdk.test.js"):
        shutil.copy(HERE / name, tmp_path)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=tmp_path, check=True, timeout=180)
    environment = {**os.environ, "TANDEM_URL": daemon.url}
    done = subprocess.run(
        ["node", "--test"], cwd=tmp_path, env=environment, timeout=120, capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
