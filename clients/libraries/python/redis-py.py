"""redis-py: `redis.lock.Lock`, on one Redis server."""
# /// script
# dependencies = ["redis==8.1.0", "async-timeout==5.0.1"]
# ///
from serve import Library, serve

import redis
from redis.exceptions import LockError


class RedisPy(Library):
    lost = LockError
    keeps_lease = True

    def __init__(self, servers, lease):
        self.redis = redis.Redis(host=servers[0]["host"], port=servers[0]["port"])

    def acquire(self, key, owner, lease):
        lock = self.redis.lock(key, timeout=lease)
        return lock if lock.acquire(blocking=False) else None

    def renew(self, lock, lease):
        lock.reacquire()

    def release(self, lock):
        lock.release()


serve(RedisPy)
