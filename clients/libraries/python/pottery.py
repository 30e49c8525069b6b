"""pottery: `Redlock`, on all Redis servers."""
# /// script
# dependencies = ["pottery==3.0.1", "redis==8.1.0", "async-timeout==5.0.1", "mmh3==5.2.0", "typing-extensions==4.14.1"]
# ///
from serve import Library, serve

import redis
from pottery import ExtendUnlockedLock, Redlock, ReleaseUnlockedLock


class Pottery(Library):
    lost = (ExtendUnlockedLock, ReleaseUnlockedLock)
    keeps_lease = True

    def __init__(self, servers, lease):
        self.masters = {redis.Redis(host=server["host"], port=server["port"]) for server in servers}

    def acquire(self, key, owner, lease):
        lock = Redlock(key=key, masters=self.masters, auto_release_time=lease)
        return lock if lock.acquire(blocking=False) else None

    def renew(self, lock, lease):
        lock.extend()

    def release(self, lock):
        lock.release()


serve(Pottery)
