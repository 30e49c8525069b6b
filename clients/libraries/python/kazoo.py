"""kazoo: `kazoo.recipe.lock.Lock`, on a ZooKeeper ensemble."""
# /// script
# dependencies = ["kazoo==2.11.0"]
# ///
from time import CLOCK_MONOTONIC_RAW, clock_gettime

from serve import Library, Lost, serve

from kazoo.client import KazooClient, KazooState


def raw():
    """Seconds of the raw clock, which no clock fault changes. A fault may make time.monotonic jump."""
    return clock_gettime(CLOCK_MONOTONIC_RAW)


class Kazoo(Library):
    def __init__(self, servers, lease):
        self.zk = KazooClient(hosts=",".join(f"{s['host']}:{s['port']}" for s in servers), timeout=lease)
        self.sessions_lost = 0
        self.lease = lease
        self.zk.add_listener(self.listen)
        self.zk.start(timeout=lease)

    def listen(self, state):
        self.sessions_lost += state == KazooState.LOST

    def acquire(self, key, owner, lease):
        lock, lost, asked = self.zk.Lock(f"/locks/{key}", owner), self.sessions_lost, raw()
        if not lock.acquire(blocking=False):
            return None
        # The session counts from its last sign of life, and nobody knows when in a slow attempt that was.
        alive_at = raw() - asked
        if alive_at < lease / 5:
            alive_at = 0
        else:
            try:
                self.zk.exists("/")
            except Exception:
                lock.release()
                raise
        return lock, lost, alive_at

    def facts(self, held):
        return self.certain(held[2])

    def certain(self, alive_at):
        # The session lives for its whole timeout after a sign of life.
        return {"lease_ms": int((alive_at + self.lease * 0.6) * 1000)}

    def renew(self, held, lease):
        # The library keeps the session alive, and its documentation tells users to listen for LOST and SUSPENDED.
        if held[1] != self.sessions_lost:
            raise Lost("LOST")
        if self.zk.state != KazooState.CONNECTED:
            raise ConnectionError(self.zk.state)
        # Nobody knows when the last sign of life was, so this request gives one.
        self.zk.exists_async("/").get(timeout=lease * 3 / 4)
        # A new session may have answered.
        if held[1] != self.sessions_lost:
            raise Lost("LOST")
        return self.certain(0)

    def release(self, held):
        held[0].release()


serve(Kazoo)
