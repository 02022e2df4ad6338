"""What a run on processes leaves behind is found, whatever it is."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.play.leftovers import Leftovers


def test_a_process_a_file_and_a_descriptor_are_found(tmp_path: Path) -> None:
    with Leftovers(patience_s=0.0) as left:
        process = subprocess.Popen(["sleep", "600"])
        name = Path(tempfile.mkdtemp())
        file = open(tmp_path / "open", "w")  # noqa: SIM115
    process.kill()
    process.wait()
    file.close()
    name.rmdir()
    name.parent.rmdir()
    assert left.found == [
        f"process {process.pid} is left",
        f"file {name} is left",
        f"1 descriptors of {tmp_path / 'open'} are left",
    ]
    with Leftovers(patience_s=0.0) as left:
        subprocess.run(["true"], check=True)
    assert left.found == []
