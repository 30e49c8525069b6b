"""`__main__.py` of a packed program: unpacks it once for each content, because extension modules cannot be imported
from an archive, and runs it."""

import pathlib
import runpy
import sys
import tempfile
import zipfile

with zipfile.ZipFile(sys.argv[0]) as packed:
    name, content = packed.comment.decode().split()
    unpacked = pathlib.Path(tempfile.gettempdir()) / f"harness-{name}-{content[:16]}"
    if not unpacked.exists():
        partial = pathlib.Path(tempfile.mkdtemp(prefix=f"harness-{name}-"))
        packed.extractall(partial)
        try:
            partial.rename(unpacked)
        except OSError:
            # Another client of the same worker was faster.
            pass

program = unpacked / f"{name}.py"
sys.argv[0], sys.path[0] = str(program), str(unpacked)
runpy.run_path(str(program), run_name="__main__")
