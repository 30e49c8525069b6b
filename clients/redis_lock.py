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
        attempts.clear()
        attempts[owner] = Attempt(request["key"], lease)
        return {"ok": True} if attempts[owner].acquire() else {"ok": False, "error": "held"}
    elif op not in ("renew", "release", "cancel"):
        return {"ok": False, "error": "unsupported"}
    elif owner not in attempts:
        return {"ok": False, "error": "lost"}
    else:
        attempts[owner].renew(lease) if op == "renew" else attempts[owner].release()
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
