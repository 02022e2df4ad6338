"""Packed environments: content, names, and a single upload."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from elasticml.clusters.yarn.packing import pack_environment, packing_list, upload_once
from elasticml.errors import ConfigError

LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture
def small_venv(tmp_path):
    """A virtual environment with one module of its own."""
    folder = tmp_path / "env"
    venv.create(folder, symlinks=True, with_pip=False)
    (folder / LIBRARY / "mine.py").write_text("ANSWER = 42\n")
    return folder


@pytest.fixture
def small_conda(tmp_path):
    """conda's view of an environment with one package, and a module beside it."""
    folder = tmp_path / "conda-env"
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "conda-meta" / "history").write_text("")
    (folder / LIBRARY).mkdir(parents=True)
    (folder / LIBRARY / "theirs.py").write_text("ANSWER = 1\n")
    (folder / LIBRARY / "mine.py").write_text("ANSWER = 42\n")
    package = {
        "name": "theirs",
        "version": "1",
        "url": "https://conda.example/theirs-1.conda",
        "link": {"source": str(tmp_path / "no-cache")},
        "files": [f"{LIBRARY}/theirs.py"],
        "noarch": None,
    }
    (folder / "conda-meta" / "theirs-1.json").write_text(json.dumps(package))
    return folder


def install_editable(folder: Path, name: str) -> None:
    """The traces of an editable pip install, for the metadata that is read."""
    info = folder / LIBRARY / f"{name}-1.dist-info"
    info.mkdir()
    hook = f"__editable__.{name}-1.pth"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "RECORD").write_text(f"{hook},,\n{info.name}/METADATA,,\n")
    url = {"dir_info": {"editable": True}, "url": "file:///home/me/work"}
    (info / "direct_url.json").write_text(json.dumps(url))
    (folder / LIBRARY / hook).write_text("import nowhere_to_be_found\n")


def contents(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        return set(opened.getnames())


def test_a_packed_venv_runs_elsewhere_with_elasticml_in_it(small_venv, tmp_path):
    install_editable(small_venv, "elasticml")
    archive = pack_environment(packing_list(str(small_venv)), tmp_path / "out" / "env.tar.gz")
    there = tmp_path / "there"
    with tarfile.open(archive) as opened:
        opened.extractall(there, filter="fully_trusted")
    code = (
        "import elasticml.ids, mine, sys;"
        "print(sys.prefix, mine.ANSWER, elasticml.__file__, elasticml.__version__)"
    )
    script = f"source bin/activate && python -I -c '{code}'"
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=there, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    prefix, answer, own, _version = done.stdout.split()
    assert (prefix, answer) == (str(there), "42")
    assert Path(own).is_relative_to(there)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["env.tar.gz"]


def test_an_installed_elasticml_is_packed_unchanged(small_venv):
    (small_venv / LIBRARY / "elasticml").mkdir()
    (small_venv / LIBRARY / "elasticml" / "__init__.py").write_text("")
    targets = {file.target for file in packing_list(str(small_venv)).files}
    own = {target for target in targets if target.startswith(f"{LIBRARY}/elasticml/")}
    assert own == {f"{LIBRARY}/elasticml/__init__.py"}


def test_other_editable_installs_are_refused_with_the_remedy(small_venv):
    install_editable(small_venv, "other")
    with pytest.raises(ConfigError, match=r"other is an editable .* --no-deps /home/me/work"):
        packing_list(str(small_venv))


def test_the_hash_depends_on_the_content(small_venv):
    exclude = [f"{LIBRARY}/elasticml/*"]
    listed = packing_list(str(small_venv), exclude)
    assert not any("/elasticml/" in file.target for file in listed.files)
    before = listed.digest()
    (small_venv / LIBRARY / "__pycache__").mkdir()
    (small_venv / LIBRARY / "__pycache__" / "mine.cpython-311.pyc").write_bytes(b"compiled")
    compiled = packing_list(str(small_venv), exclude).digest()
    (small_venv / LIBRARY / "mine.py").write_text("ANSWER = 43\n")
    changed = packing_list(str(small_venv), exclude).digest()
    assert compiled == before
    assert changed != before


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_an_environment_is_uploaded_once(small_venv, tmp_path, scheme):
    place = f"{scheme}{tmp_path}/environments"
    listed = packing_list(str(small_venv))
    messages: list[str] = []
    first = upload_once(listed, place, say=messages.append)
    assert [line.split()[0] for line in messages] == ["packing", "uploading"]
    assert upload_once(listed, place, say=messages.append) == first
    assert len(messages) == 2
    assert first == f"{place}/{listed.digest()}.tar.gz"


def test_a_conda_environment_is_packed_by_conda_pack(small_conda, tmp_path):
    install_editable(small_conda, "elasticml")
    listed = packing_list(str(small_conda))
    archive = pack_environment(listed, tmp_path / "env.tar.gz")
    names = contents(archive)
    assert listed.kind == "conda"
    assert {
        f"{LIBRARY}/theirs.py",
        f"{LIBRARY}/mine.py",
        f"{LIBRARY}/elasticml/ids.py",
        "bin/activate",
    } <= names
    assert not any("__editable__" in name for name in names)


def test_a_folder_that_is_no_environment_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a virtual or conda environment"):
        packing_list(str(tmp_path))
