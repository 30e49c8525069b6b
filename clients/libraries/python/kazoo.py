"""kazoo: `kazoo.recipe.lock.Lock`, on a ZooKeeper ensemble."""
# /// script
# dependencies = ["kazoo==2.11.0"]
# ///
from serve import Library, Lost, serve

from kazoo.client import KazooClient, KazooState


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
        lock, lost = self.zk.Lock(f"/locks/{key}", owner), self.sessions_lost
        return (lock, lost) if lock.acquire(blocking=False) else None

    def facts(self, held):
        # The session counts from its last sign of life. The library gives one after a third of the timeout.
        return {"lease_ms": int(self.lease * 600)}

    def renew(self, held, lease):
        # The library keeps the session alive, and its documentation tells users to listen for LOST and SUSPENDED.
        if held[1] != self.sessions_lost:
            raise Lost("LOST")
        if self.zk.state != KazooState.CONNECTED:
            raise ConnectionError(self.zk.state)

    def release(self, held):
        held[0].release()


serve(Kazoo)
