"""aioredlock: `Aioredlock`, on all Redis servers."""
# /// script
# dependencies = [
#     "aioredlock==0.7.3", "aioredis==1.3.1", "attrs==25.3.0", "hiredis==3.2.1", "async-timeout==5.0.1",
# ]
# ///
import asyncio

from serve import Library, serve

from aioredlock import Aioredlock, LockAcquiringError


class AioRedlock(Library):
    # `LockRuntimeError` is a failure of a connection, after which nothing is certain.
    lost = LockAcquiringError

    def __init__(self, servers, lease):
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.manager = Aioredlock([(server["host"], server["port"]) for server in servers], retry_count=1)

    def acquire(self, key, owner, lease):
        try:
            return self.loop.run_until_complete(self.manager.lock(key, lock_timeout=lease))
        except LockAcquiringError:
            return None

    def renew(self, lock, lease):
        self.loop.run_until_complete(self.manager.extend(lock, lock_timeout=lease))

    def release(self, lock):
        self.loop.run_until_complete(self.manager.unlock(lock))


serve(AioRedlock)
