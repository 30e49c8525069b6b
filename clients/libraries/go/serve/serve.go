// Package serve is the loop of the client programs of the Go libraries: requests on standard input, answers on
// standard output.
package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Errors of a library that have a code of their own. Every other error is indefinite.
var (
	ErrHeld = errors.New("held")
	ErrLost = errors.New("lost")
)

// A Server is one lock server.
type Server struct {
	Name string `json:"name"`
	Host string `json:"host"`
	Port int    `json:"port"`
}

// Address returns the server as host:port.
func (s Server) Address() string { return fmt.Sprintf("%s:%d", s.Host, s.Port) }

// A Lock is one acquisition.
type Lock interface {
	// Token returns the fencing token, or 0 if the library has none.
	Token() int64
	// Renew asks the library, which renews by itself, whether it still has the lock, and the server for a sign of life
	// of the session.
	Renew(ctx context.Context) error
	// Release gives the lock back.
	Release(ctx context.Context) error
}

// A Library makes one attempt that waits at most until the context ends. The session of the lock gives a sign of life
// during the attempt.
type Library func(ctx context.Context, key, owner string) (Lock, error)

type request struct {
	ID      uint64   `json:"id"`
	Op      string   `json:"op"`
	Servers []Server `json:"servers"`
	LeaseMs int64    `json:"lease_ms"`
	Key     string   `json:"key"`
	Owner   string   `json:"owner"`
}

type answer struct {
	ID     uint64 `json:"id"`
	OK     bool   `json:"ok"`
	Error  string `json:"error,omitempty"`
	Detail string `json:"detail,omitempty"`
	Token  int64  `json:"token,omitempty"`
	// The locks of both libraries live with a session, which counts from its last sign of life. The session gives one
	// during this request, so three fifths of the timeout are certain.
	LeaseMs int64 `json:"lease_ms,omitempty"`
}

// Serve answers requests until the end of the input. `open` connects to the servers.
func Serve(open func(servers []Server, lease time.Duration) (Library, error)) {
	var library Library
	lease := time.Second
	locks := map[string]Lock{}
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "no request:", err)
			os.Exit(1)
		}
		given := answer{ID: asked.ID}
		var err error
		if asked.Op == "init" {
			lease = time.Duration(asked.LeaseMs) * time.Millisecond
			library, err = open(asked.Servers, lease)
		} else {
			// No answer may take longer than the lease.
			ctx, cancel := context.WithTimeout(context.Background(), lease*3/4)
			given.Token, err = do(ctx, library, locks, asked)
			cancel()
			if err == nil && (asked.Op == "acquire" || asked.Op == "renew") {
				given.LeaseMs = lease.Milliseconds() * 3 / 5
			}
		}
		given.OK = err == nil
		if err != nil {
			given.Error, given.Detail = code(err), err.Error()
		}
		if err := answers.Encode(given); err != nil {
			os.Exit(1)
		}
	}
}

var errUnsupported = errors.New("unknown request")

func do(ctx context.Context, library Library, locks map[string]Lock, asked request) (int64, error) {
	lock, has := locks[asked.Owner]
	switch asked.Op {
	case "acquire":
		lock, err := library(ctx, asked.Key, asked.Owner)
		if err != nil {
			return 0, err
		}
		locks[asked.Owner] = lock
		return lock.Token(), nil
	case "renew", "release":
		if !has {
			return 0, ErrLost
		}
		if asked.Op == "renew" {
			return 0, lock.Renew(ctx)
		}
		delete(locks, asked.Owner)
		return 0, lock.Release(ctx)
	case "cancel":
		// An attempt that got nothing has left nothing that its user could remove.
		if !has {
			return 0, nil
		}
		delete(locks, asked.Owner)
		return 0, lock.Release(ctx)
	}
	return 0, errUnsupported
}

func code(err error) string {
	switch {
	case errors.Is(err, ErrHeld):
		return "held"
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, errUnsupported):
		return "unsupported"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "error"
}
