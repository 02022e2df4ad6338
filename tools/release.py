"""Build the sdist and the wheel, check what is in them, and try both on every Python there is.

    make release

The distributions go to dist/, and what was found to docs/figures/package.json, from which the site
has its tables. Nothing is uploaded: the last line says how. The version is ``VERSION`` in
elasticml/ids.py.
"""

from __future__ import annotations

import argparse
import ast
import collections
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
FIGURES = ROOT / "docs" / "figures" / "package.json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

#: What each distribution must contain, relative to its first folder.
IN_SDIST = (
    ".ci/run",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "docs/explanation/architecture.md",
    "examples/",
    "noxfile.py",
    "pyproject.toml",
    "setup.py",
    "tests/conftest.py",
    "tests/frozen/",
    "tools/release.py",
    "uv.lock",
    "yarn/agent/pom.xml",
    "yarn/mini/pom.xml",
    "yarn/agent/src/main/java/io/elasticml/agent/Agent.java",
)
IN_WHEEL = (
    "elasticml/__init__.py",
    "elasticml/py.typed",
    "elasticml/clusters/yarn/elasticml-agent.jar",
    "elasticml/report/lanes.js",
    "elasticml/report/page.css",
)
#: Patterns of what neither may contain.
UNWANTED = re.compile(r"__pycache__|\.py[cod]$|\.nb[ic]$|/target/|^runs/|^\.venv")

#: Run in each fresh environment: a fit by a job on worker processes, as a newcomer would.
TRIAL = """
import elasticml as em
from sklearn.datasets import make_classification
X, y = make_classification(2000, 20, random_state=0)
if __name__ == "__main__":
    with em.LocalCluster(workers=2) as cluster:
        model = em.LogisticRegression(client=cluster.scheduler_address).fit(X, y)
    assert model.score(X, y) > 0.95
    print("works")
"""


def version() -> str:
    """Return the version that elasticml/ids.py states."""
    for node in ast.parse((ROOT / "elasticml" / "ids.py").read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "VERSION":
            return str(ast.literal_eval(node.value or ast.Constant("")))
    raise SystemExit("release: elasticml/ids.py states no VERSION")


def uv() -> str:
    """Return the path of uv: the Makefile's, or the one on the PATH."""
    own = ROOT / ".venv-uv" / "bin" / "uv"
    found = str(own) if own.is_file() else shutil.which("uv")
    if found is None:
        raise SystemExit("release: uv is missing; run: make setup")
    return found


def check_sources(number: str) -> None:
    """Stop unless the changelog and the citation name the version and the tree is clean."""
    if not re.search(rf"^## \[?{re.escape(number)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M):
        raise SystemExit(f"release: CHANGELOG.md has no section {number}")
    if f"\nversion: {number}\n" not in (ROOT / "CITATION.cff").read_text():
        raise SystemExit(f"release: CITATION.cff does not name version {number}")
    subprocess.run([uv(), "lock", "--check", "--quiet"], cwd=ROOT, check=True)


def build() -> tuple[Path, Path]:
    """Build the sdist from the tree, and the wheel from the sdist; return their paths."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([uv(), "build", "--quiet", "--out-dir", str(DIST)], cwd=ROOT, check=True)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def contents(path: Path) -> dict[str, int]:
    """Return the sizes of a distribution's files by name, relative to its first folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {entry.filename: entry.file_size for entry in wheel.infolist()}
    with tarfile.open(path) as sdist:
        return {m.name.partition("/")[2]: m.size for m in sdist.getmembers() if m.isfile()}


def check_contents(path: Path, expected: tuple[str, ...]) -> list[object]:
    """Stop if a file is missing or unwanted; return size in MB, files, unpacked size in MB."""
    files = contents(path)
    missing = [name for name in expected if not any(file.startswith(name) for file in files)]
    unwanted = [name for name in files if UNWANTED.search(name)]
    if missing or unwanted:
        raise SystemExit(f"release: {path.name} lacks {missing} and contains {unwanted}")
    return [round(path.stat().st_size / 1e6, 2), len(files), round(sum(files.values()) / 1e6, 2)]


def pythons(wanted: list[str]) -> dict[str, str]:
    """Return the interpreters that exist on this machine, pyenv's included, by version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [os.environ["PATH"], *map(str, pyenv.glob("versions/*/bin"))]
    found = {}
    for name in wanted:
        command = [uv(), "python", "find", "--no-project", "--no-python-downloads", name]
        environment = {**os.environ, "PATH": os.pathsep.join(places)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            found[name] = done.stdout.strip()
    return found


def try_out(distribution: Path, python: str, extras: str) -> dict[str, object]:
    """Install a distribution into a fresh environment, and use it; return what was measured.

    Raises
    ------
    CalledProcessError
        When a step fails; its output is shown.
    """
    with tempfile.TemporaryDirectory(prefix="elasticml-release-") as folder:
        bin_ = Path(folder) / "venv" / "bin"
        run([uv(), "venv", "--quiet", "--no-project", "--python", python, f"{folder}/venv"], folder)
        install = [uv(), "pip", "install", "--quiet", "--python", str(bin_ / "python")]
        run([*install, f"elasticml[{extras}] @ {distribution.as_uri()}"], folder)
        run([uv(), "pip", "check", "--quiet", "--python", str(bin_ / "python")], folder)
        # Not from the checkout: the installed package must be whole.
        Path(folder, "trial.py").write_text(TRIAL)
        python_ = str(bin_ / "python")
        number = "import platform; print(platform.python_version())"
        # -W error: neither elasticml nor what it imports warns.
        run([python_, "-W", "error", "-c", "import elasticml.cli.main"], folder)
        if run([str(bin_ / "elasticml"), "--version"], folder).split()[-1] != version():
            raise SystemExit(f"release: {distribution.name} states another version")
        return {
            "python": run([python_, "-c", number], folder),
            "doctor": doctor(bin_, folder),
            "trial": run([python_, "trial.py"], folder),
        }


def doctor(bin_: Path, folder: str) -> str:
    """Count the findings of ``elasticml doctor`` by state; a broken required one stops."""
    report = json.loads(run([str(bin_ / "elasticml"), "doctor", "--json"], folder))
    states = collections.Counter(check["state"] for check in report["checks"])
    return ", ".join(f"{count} {state}" for state, count in states.items())


def run(command: list[str], folder: str) -> str:
    """Run a command in a folder and return what it prints; show it all if the command fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout.strip()


def main() -> None:
    """Build, check and try out; write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", help="only this version; may be repeated")
    parser.add_argument("--extras", default="yarn", help="extras of the trial installations")
    options = parser.parse_args()
    number = version()
    check_sources(number)
    sdist, wheel = build()
    sizes = [check_contents(wheel, IN_WHEEL), check_contents(sdist, IN_SDIST)]
    subprocess.run(
        [uv(), "tool", "run", "twine", "check", "--strict", str(sdist), str(wheel)], check=True
    )
    wanted = options.python or list(PYTHONS)
    found = pythons(wanted)
    trials = []
    for python in found.values():
        of_wheel, of_sdist = (try_out(path, python, options.extras) for path in (wheel, sdist))
        if of_wheel != of_sdist:
            raise SystemExit(f"release: wheel and sdist differ: {of_wheel} {of_sdist}")
        trials.append(list(of_wheel.values()))
        print(*trials[-1], sep="; ", flush=True)
    write_figures(sizes, trials, options.extras, [name for name in wanted if name not in found])
    print(f"tag v{number}, then: uv publish dist/*.tar.gz dist/*.whl")


def write_figures(
    sizes: list[list[object]], trials: list[list[object]], extras: str, absent: list[str]
) -> None:
    """Write the tables for the site."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    notes = [
        f"With the extra {extras}; pip check and import without a warning, too.",
        "Missing are the folder of data sets and the configuration of a Hadoop cluster, both "
        "optional.",
    ]
    if absent:
        notes.append(
            f"Not on the machine: Python {', '.join(absent)}; uv.lock has versions for it."
        )
    figures = {
        "date": datetime.date.today().isoformat(),
        "command": "make release",
        "machine": f"{os.cpu_count()} cores, {round(memory / 2**30)} GiB",
        "order": 200,
        "tables": [
            {
                "title": f"The distributions of {version()}",
                "columns": ["file", "size, MB", "files", "unpacked, MB", "contains"],
                "rows": [
                    ["wheel", *sizes[0], "the package and the agent's jar"],
                    [
                        *("sdist", *sizes[1]),
                        "the package, tests, docs, examples, yarn, tools, Makefile, lock file",
                    ],
                ],
                "notes": [
                    "The wheel is for every Python from 3.11 and every machine with Linux; the "
                    "sdist needs Maven and a JDK to be built, except with "
                    "ELASTICML_WITHOUT_AGENT=1."
                ],
            },
            {
                "title": "Wheel and sdist, each in fresh environments",
                "columns": ["Python", "elasticml doctor", "a fit on two workers"],
                "rows": trials,
                "notes": notes,
            },
        ],
    }
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
