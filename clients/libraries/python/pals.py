"""pals: `Locker`, by Postgres advisory locks on one server."""
# /// script
# dependencies = [
#     "PALs==0.4.0", "sqlalchemy==2.0.41", "typing-extensions==4.14.1", "greenlet==3.2.3", "psycopg2-binary==2.9.10",
# ]
# ///
from serve import Library, Lost, serve

import pals


class Pals(Library):
    def __init__(self, servers, lease):
        url = f"postgresql://postgres@{servers[0]['host']}:{servers[0]['port']}/postgres"
        self.locker = pals.Locker("harness", url)

    def acquire(self, key, owner, lease):
        lock = self.locker.lock(key)
        return lock if lock.acquire(blocking=False) else None

    def release(self, lock):
        if not lock.release():
            raise Lost("release returned False")


serve(Pals)
