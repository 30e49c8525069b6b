"""redlock-ng: `Redlock`, on all Redis servers."""
# /// script
# dependencies = [
#     "redlock-ng==2.0.4", "redis==5.3.1", "async-timeout==5.0.1", "PyJWT==2.10.1", "urllib3==1.26.20",
#     "pydantic==2.11.7", "pydantic-core==2.33.2", "annotated-types==0.7.0", "typing-extensions==4.14.1",
#     "typing-inspection==0.4.1",
# ]
# ///
from serve import Library, Lost, serve

from redlock import Redlock


class RedlockNg(Library):
    def __init__(self, servers, lease):
        self.redlock = Redlock([f"redis://{s['host']}:{s['port']}/0" for s in servers], retry_count=0)

    def acquire(self, key, owner, lease):
        return self.redlock.acquire(key, int(lease * 1000))

    def facts(self, lock):
        return {"valid_ms": lock.validity}

    def renew(self, lock, lease):
        if not self.redlock.extend(lock, int(lease * 1000)):
            raise Lost("extend returned False")

    def release(self, lock):
        self.redlock.release(lock)


serve(RedlockNg)
