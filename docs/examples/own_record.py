"""Writes a history of two clients that share a lock: `python3 own_record.py > history.jsonl`.

With the word `early`, the lock grants the key to the second client while the first client still holds it.
"""
import json, sys

MS = 1_000_000  # a stamp counts nanoseconds
PROCESSES = {"worker-1": "worker", "worker-2": "worker", "resource": "resource", "agent": "agent"}
SERVERS = {"topology": "one-store", "promise": "lease", "lease_clock": "monotonic", "amnesia": "forgets-locks",
           "kill_forgets": False, "shows_waiting": True, "tokens": ["own"], "port": 1}
PLAN = {"schema": 1, "seed": 0, "cluster": "docker", "backend": "my-lock", "tokens": "own", "time": "10s",
        "lease": "2s", "arms": ["off"], "lock_nodes": ["my-lock"], "servers": SERVERS, "workload": {"workers": 2},
        "activity": {"holds": 2, "clients": 2, "refused": 0}}
EARLY = "early" in sys.argv
written = {}  # the last event number of each process


def event(process, at_ms, name, **fields):
    n = written[process] = written.get(process, -1) + 1
    print(json.dumps({"process": process, "n": n, "at": at_ms * MS, "event": name, **fields}))


def attempt(worker, number, sent_ms, token=None, wanted_ms=None):
    client = int(worker[-1]) - 1
    wanted_ms = sent_ms if wanted_ms is None else wanted_ms  # the same in all attempts of one wait
    event(worker, sent_ms, "acquire", client=client, attempt=number, key="k0", intended=wanted_ms * MS)
    if token is None:
        return event(worker, sent_ms + 5, "acquire-failed", attempt=number, outcome="failed", why="held")
    event(worker, sent_ms + 5, "acquired", attempt=number, token=token, lease_ns=2000 * MS, granted_after=sent_ms * MS)


event("controller", 0, "plan", run="two-clients", plan=PLAN)
for process, role in PROCESSES.items():
    event(process, 1, "started", role=role, boot_id="one machine", time_namespace=0)
attempt("worker-1", 1, 100, token=1)
attempt("worker-2", 1001, 300, token=2 if EARLY else None)
event("worker-1", 1000, "release", hold=1)
event("worker-1", 1005, "released", hold=1, removed=True)
if not EARLY:
    attempt("worker-2", 1002, 1200, token=3, wanted_ms=300)
for process in PROCESSES:
    event(process, 2000, "finished")
event("controller", 0, "end")
