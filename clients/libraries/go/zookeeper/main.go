// The client program of go-zookeeper's Lock. The library's Lock waits until it has the lock, and nothing takes an
// attempt back but the end of the session. So each attempt has a session of its own.
package main

import (
	"context"
	"time"

	"github.com/samuel/go-zookeeper/zk"

	"serve"
)

type lock struct {
	session *zk.Conn
	id      int64
	lock    *zk.Lock
}

// Token returns nothing: the library keeps the sequence of its node to itself.
func (l lock) Token() int64 { return 0 }

// isLost tells whether the connection has another session than the one of the lock, or says that it is not connected.
func (l lock) isLost() bool {
	return l.session.SessionID() != l.id || l.session.State() != zk.StateHasSession
}

// Renew makes a request, because nobody sees when the last sign of life of the session was.
func (l lock) Renew(ctx context.Context) error {
	if l.isLost() {
		return serve.ErrLost
	}
	err := within(ctx, func() error {
		_, _, err := l.session.Exists("/")
		return err
	})
	// A new session may have answered.
	if err == nil && l.isLost() {
		return serve.ErrLost
	}
	return err
}

func (l lock) Release(ctx context.Context) error {
	defer l.session.Close()
	return within(ctx, l.lock.Unlock)
}

// within waits for a call of the library, which has no time limit of its own.
func within(ctx context.Context, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func open(servers []serve.Server, lease time.Duration) (serve.Library, error) {
	var addresses []string
	for _, server := range servers {
		addresses = append(addresses, server.Address())
	}
	return func(ctx context.Context, key, owner string) (serve.Lock, error) {
		session, _, err := zk.Connect(addresses, lease, zk.WithLogInfo(false))
		if err != nil {
			return nil, err
		}
		soon, cancel := context.WithTimeout(ctx, lease/4)
		defer cancel()
		attempt := zk.NewLock(session, "/locks/"+key, zk.WorldACL(zk.PermAll))
		if err := within(soon, attempt.Lock); err != nil {
			had := session.State() == zk.StateHasSession
			go session.Close()
			if err == context.DeadlineExceeded && had {
				return nil, serve.ErrHeld
			}
			return nil, err
		}
		return lock{session, session.SessionID(), attempt}, nil
	}, nil
}

func main() { serve.Serve(open) }
