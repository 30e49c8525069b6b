#!/usr/bin/env python3
"""Packs the program of one library with its pinned packages into one file, which `python3 FILE` runs.

usage: pack.py PROGRAM.py DIR

The dependencies are in the head of the program, as the Python packaging guide defines it ("Inline script metadata"). All
are named, so none is resolved. Extension modules are those for CPython of Debian bookworm on this processor. A
packed program that is up to date is left as it is.
"""

import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = "3.11"
# A fixed time, so that the same input gives the same file.
TIME = (2020, 1, 1, 0, 0, 0)


def dependencies(program):
    head = re.search(r"(?ms)^# /// script$\n(.*?)^# ///$", program.read_text())
    return tomllib.loads(re.sub(r"(?m)^# ?", "", head.group(1)))["dependencies"]


def install(packages, target):
    platforms = [f"--platform={tag}_{platform.machine()}" for tag in ("manylinux2014", "manylinux_2_28")]
    options = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--no-deps", "--no-compile"]
    command = ["install", *options, "--implementation=cp", f"--python-version={PYTHON}", *platforms]
    subprocess.run([sys.executable, "-m", "pip", *command, f"--target={target}", *packages], check=True)
    # Bytecode that no time of a file makes invalid. Another Python ignores it.
    compiler = [sys.executable, "-m", "compileall", "-qq", "--invalidation-mode=unchecked-hash"]
    subprocess.run([*compiler, target], check=False)


def content(program):
    sources = [pathlib.Path(__file__), HERE / "serve.py", HERE / "unpack.py", program]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources) + sys.version.encode()).hexdigest()


def pack(program, packages, out, comment):
    files = {"__main__.py": HERE / "unpack.py", "serve.py": HERE / "serve.py", program.name: program}
    for path in sorted(packages.rglob("*")):
        if path.is_file():
            files[f"packages/{program.stem}/{path.relative_to(packages)}"] = path
    partial = out.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, path in files.items():
            packed.writestr(zipfile.ZipInfo(name, TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
        packed.comment = comment.encode()
    partial.rename(out)


def main():
    program, directory = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    out = directory / f"{program.stem}.pyz"
    comment = f"{program.stem} {content(program)}"
    if out.exists() and zipfile.ZipFile(out).comment.decode() == comment:
        return
    with tempfile.TemporaryDirectory() as packages:
        install(dependencies(program), packages)
        pack(program, pathlib.Path(packages), out, comment)


if __name__ == "__main__":
    main()
