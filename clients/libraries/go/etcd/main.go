// The client program of etcd's package clientv3/concurrency: one session for this client, and a Mutex for each attempt.
package main

import (
	"context"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
	"go.etcd.io/etcd/etcdserver/api/v3rpc/rpctypes"

	"serve"
)

// A Mutex whose Unlock has deleted its key has this key.
const deleted = "\x00"

type lock struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func (l lock) Token() int64                      { return l.mutex.Header().Revision }
func (l lock) Release(ctx context.Context) error { return l.mutex.Unlock(ctx) }

func (l lock) Renew(ctx context.Context) error {
	if isOver(l.session) {
		return serve.ErrLost
	}
	err := keepAlive(ctx, l.session)
	if err == rpctypes.ErrLeaseNotFound {
		// The library has not noticed yet that the server has ended the lease.
		return serve.ErrLost
	}
	return err
}

// keepAlive lets the lease count from now. The session refreshes its lease by itself, but nobody sees when the last
// refresh was, and Mutex.Lock is none.
func keepAlive(ctx context.Context, session *concurrency.Session) error {
	_, err := session.Client().KeepAliveOnce(ctx, session.Lease())
	return err
}

// isOver tells whether the library has said that the lease is no longer refreshed.
func isOver(session *concurrency.Session) bool {
	select {
	case <-session.Done():
		return true
	default:
		return false
	}
}

func open(servers []serve.Server, lease time.Duration) (serve.Library, error) {
	config := clientv3.Config{DialTimeout: lease}
	for _, server := range servers {
		config.Endpoints = append(config.Endpoints, server.Address())
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, err
	}
	// The library counts leases in whole seconds.
	ttl := int((lease + time.Second - 1) / time.Second)
	var session *concurrency.Session
	return func(ctx context.Context, key, owner string) (serve.Lock, error) {
		if session == nil || isOver(session) {
			if session, err = newSession(ctx, client, ttl); err != nil {
				return nil, err
			}
		}
		// This version has no TryLock. The shortest wait for another holder is a context that ends soon.
		soon, cancel := context.WithTimeout(ctx, lease/10)
		defer cancel()
		if err := keepAlive(soon, session); err != nil {
			return nil, err
		}
		mutex := concurrency.NewMutex(session, "/locks/"+key)
		if err := mutex.Lock(soon); err != nil {
			if err == context.DeadlineExceeded && mutex.Key() == deleted {
				return nil, serve.ErrHeld
			}
			return nil, err
		}
		return lock{session, mutex}, nil
	}, nil
}

// newSession waits for the session no longer than the request may. The context of a session ends its refresh, so it is
// not the one of the request.
func newSession(ctx context.Context, client *clientv3.Client, ttl int) (*concurrency.Session, error) {
	grant, err := client.Grant(ctx, int64(ttl))
	if err != nil {
		return nil, err
	}
	return concurrency.NewSession(client, concurrency.WithTTL(ttl), concurrency.WithLease(grant.ID))
}

func main() { serve.Serve(open) }
