"""sherlock: `RedisLock`, on one Redis server."""
# /// script
# dependencies = ["sherlock==0.4.1", "redis==4.6.0"]
# ///
import math

from serve import Library, Lost, serve

import redis
from sherlock import LockException, RedisLock


class Sherlock(Library):
    lost = LockException
    keeps_lease = True

    def __init__(self, servers, lease):
        self.redis = redis.StrictRedis(host=servers[0]["host"], port=servers[0]["port"])

    def acquire(self, key, owner, lease):
        # The documentation says float, but Redis refuses fractions, and even 2.0, in what the library sends.
        lock = RedisLock(key, client=self.redis, expire=math.ceil(lease))
        return lock if lock.acquire(blocking=False) else None

    def renew(self, lock, lease):
        if not lock.renew():
            raise Lost("renew returned False")

    def release(self, lock):
        lock.release()


serve(Sherlock)
