"""etcd3 (python-etcd3): `Lock`, on one server of an etcd cluster: the client takes one address."""
# /// script
# dependencies = ["etcd3==0.12.0", "grpcio==1.74.0", "protobuf==3.20.3", "six==1.17.0", "tenacity==7.0.0"]
# ///
import math

from serve import Library, Lost, serve

import etcd3


class Etcd3(Library):
    def __init__(self, servers, lease):
        self.etcd = etcd3.client(host=servers[0]["host"], port=servers[0]["port"])

    def acquire(self, key, owner, lease):
        # The library counts leases in whole seconds.
        lock = self.etcd.lock(key, ttl=math.ceil(lease))
        return lock if lock.acquire(timeout=0) else None

    def facts(self, lock):
        return {"lease_ms": lock.lease.ttl * 1000}

    def renew(self, lock, lease):
        lock.refresh()
        # The server grants the time of the acquisition again, in whole seconds.
        return self.facts(lock)

    def release(self, lock):
        if not lock.release():
            raise Lost("release returned False")


serve(Etcd3)
