"""redlock-py: `Redlock`, on all Redis servers."""
# /// script
# dependencies = ["redlock-py==1.0.8", "redis==8.1.0", "async-timeout==5.0.1"]
# ///
from serve import Library, serve

from redlock import Redlock


class RedlockPy(Library):
    def __init__(self, servers, lease):
        nodes = [{"host": server["host"], "port": server["port"], "db": 0} for server in servers]
        self.redlock = Redlock(nodes, retry_count=1)

    def acquire(self, key, owner, lease):
        return self.redlock.lock(key, int(lease * 1000)) or None

    def facts(self, lock):
        return {"valid_ms": lock.validity}

    def release(self, lock):
        self.redlock.unlock(lock)


serve(RedlockPy)
