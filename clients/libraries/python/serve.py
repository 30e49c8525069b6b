"""The loop of the client programs of the Python libraries: requests on standard input, answers on standard output.

A program defines a `Library` and ends with `serve(Library)`. It imports this module first, because this module makes
the pinned packages of the program importable: `packages/NAME` for the program `NAME.py`. They take the place of the
program's own directory, where `kazoo.py` would hide the package `kazoo`.
"""

import json
import os
import pathlib
import sys

PROGRAM = pathlib.Path(sys.argv[0]).resolve()
sys.path[0] = str(PROGRAM.parent / "packages" / PROGRAM.stem)

# Nothing that a library prints may come between the answers.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


class Lost(Exception):
    """The library says that the lock is no longer this client's."""


class Unsupported(Exception):
    """The library has no such operation."""


class Library:
    """The operations of one library. A lock is any value in which the library keeps one acquisition."""

    # The exceptions by which the library says that a lock is no longer the caller's.
    lost = ()
    # Whether the library renews a lock for the lease of its acquisition, whatever `renew` asks for.
    keeps_lease = False

    def __init__(self, servers, lease):
        """Connects to the servers, of which each has `name`, `host` and `port`. The lease is in seconds."""

    def acquire(self, key, owner, lease):
        """Makes one attempt. Returns the lock, or None if the library says that it did not get it."""
        raise NotImplementedError

    def facts(self, lock):
        """Returns what the library tells its user about a new lock: `token`, `valid_ms`, `lease_ms`."""
        return {}

    def renew(self, lock, lease):
        """Lets the lock last, or asks a library that renews by itself whether it still has the lock.

        Returns None, or what the library tells its user about the renewal: `valid_ms`, `lease_ms`."""
        raise Unsupported("the library cannot extend a lock")

    def release(self, lock):
        """Gives the lock back."""
        raise NotImplementedError


def answer(library, locks, request):
    """Does one request. Returns its answer, without the number."""
    op, owner, lease = request["op"], request.get("owner"), request.get("lease_ms", 0) / 1000
    if op == "acquire":
        lock = library.acquire(request["key"], owner, lease)
        if lock is None:
            return {"ok": False, "error": "held"}
        locks[owner] = lock, lease
        return {"ok": True, **library.facts(lock)}
    if op not in ("renew", "release", "cancel"):
        raise Unsupported(op)
    if owner not in locks:
        if op == "cancel":
            # An attempt that got nothing has left nothing that its user could remove.
            return {"ok": True}
        raise Lost("this process has no such lock")
    try:
        if op == "renew":
            lock, acquired_for = locks[owner]
            kept = {"lease_ms": round(acquired_for * 1000)} if library.keeps_lease else {}
            return {"ok": True, **kept, **(library.renew(lock, lease) or {})}
        library.release(locks.pop(owner)[0])
    except library.lost as error:
        raise Lost(f"{type(error).__name__}: {error}") from error
    return {"ok": True}


def failure(error):
    """Returns the answer for an exception. Whatever is not certain is an indefinite error."""
    codes = {Lost: "lost", Unsupported: "unsupported"}
    is_timeout = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__
    code = codes.get(type(error), "timeout" if is_timeout else "error")
    return {"ok": False, "error": code, "detail": f"{type(error).__name__}: {error}"[:500]}


def serve(make):
    """Answers requests until the end of the input."""
    library, locks = None, {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["op"] == "init":
                library = make(request["servers"], request["lease_ms"] / 1000)
                answered = {"ok": True}
            else:
                answered = answer(library, locks, request)
        except Exception as error:  # pylint: disable=broad-exception-caught
            answered = failure(error)
        print(json.dumps({"id": request["id"], **answered}), file=ANSWERS)
    # The threads of a library must not keep the program from ending.
    os._exit(0)
