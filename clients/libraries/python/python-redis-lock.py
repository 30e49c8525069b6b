"""python-redis-lock: `redis_lock.Lock`, on one Redis server."""
# /// script
# dependencies = ["python-redis-lock==4.0.1", "redis==8.1.0", "async-timeout==5.0.1"]
# ///
from serve import Library, serve

import redis_lock
from redis import StrictRedis


class PythonRedisLock(Library):
    lost = redis_lock.NotAcquired
    keeps_lease = True

    def __init__(self, servers, lease):
        self.redis = StrictRedis(host=servers[0]["host"], port=servers[0]["port"])

    def acquire(self, key, owner, lease):
        lock = redis_lock.Lock(self.redis, key, expire=lease)
        return lock if lock.acquire(blocking=False) else None

    def renew(self, lock, lease):
        lock.extend()

    def release(self, lock):
        lock.release()


serve(PythonRedisLock)
