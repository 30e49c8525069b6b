#!/usr/bin/env python3
"""A client program for `harness run --client` (docs/client-protocol.md): the lock of redis-py.
To test a lock of your own, write its `acquire` and `release` into the class `Attempt`."""
import json, sys
import redis

class Attempt:
    def __init__(self, key, lease):
        self.lock = connection.lock(key, timeout=lease)

    def acquire(self):
        return self.lock.acquire(blocking=False)

    def renew(self, lease):
        self.lock.extend(lease, replace_ttl=True)

    def release(self):
        self.lock.release()

def done(request):
    global connection
    op, owner, lease = request["op"], request.get("owner"), request.get("lease_ms", 0) / 1000
    if op == "init":
        server = request["servers"][0]
        connection = redis.Redis(server["host"], server["port"], socket_timeout=lease / 4, retry=None)
    elif op == "acquire":
        # An attempt that ends with an exception may have the lock all the same.
        attempts[owner] = None
        attempt = Attempt(request["key"], lease)
        if not attempt.acquire():
            del attempts[owner]
            return {"ok": False, "error": "held"}
        attempts[owner] = attempt
    elif op not in ("renew", "release", "cancel"):
        return {"ok": False, "error": "unsupported"}
    elif owner not in attempts:
        return {"ok": False, "error": "lost"}
    elif attempts[owner] is None:
        return {"ok": False, "error": "error", "detail": "the attempt failed, and may have the lock all the same"}
    elif op == "renew":
        attempts[owner].renew(lease)
    else:
        attempts.pop(owner).release()
    return {"ok": True}

attempts = {}
for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = done(request)
    except redis.exceptions.LockError:
        answer = {"ok": False, "error": "lost"}
    except Exception as problem:
        answer = {"ok": False, "error": "error", "detail": repr(problem)}
    print(json.dumps({"id": request["id"], **answer}), flush=True)
