// A client program for `harness run --client` (docs/client-protocol.md): a lock on one Redis server, in Go.
// To test a lock of your own, write it into the methods of `attempt`. Build: CGO_ENABLED=0 go build clients/redis_lock.go
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// An attempt to acquire the lock of `key`. No two attempts have the same owner.
type attempt struct{ key, owner string }

// The errors by which a lock says that a request certainly did nothing. After any other error it may have been done.
var (
	errHeld    = errors.New("held")
	errLost    = errors.New("lost")
	errRefused = errors.New("refused")
)

// acquire makes one attempt, and returns the fencing token. If another client holds the lock, it returns errHeld.
func (a attempt) acquire(lease time.Duration) (int64, error) {
	return a.eval("if redis.call('set',KEYS[1],ARGV[1],'nx','px',ARGV[2]) then "+
		"return redis.call('incr','fence:'..KEYS[1]) end return 0", lease, errHeld)
}

// renew lets the lock last for `lease` from now on. It returns errLost if the lock is no longer this attempt's.
func (a attempt) renew(lease time.Duration) error {
	_, err := a.eval(ifOwner("'pexpire',KEYS[1],ARGV[2]"), lease, errLost)
	return err
}

// release gives the lock back. It returns errLost if the lock is no longer this attempt's.
func (a attempt) release() error {
	_, err := a.eval(ifOwner("'del',KEYS[1]"), 0, errLost)
	return err
}

func ifOwner(call string) string {
	return "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call(" + call + ") end return 0"
}

// eval runs a script on the server. An answer of 0 means `zero`.
func (a attempt) eval(script string, lease time.Duration, zero error) (int64, error) {
	if connection == nil {
		opened, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			return 0, fmt.Errorf("%w: %v", errRefused, err)
		}
		connection, answers = opened, bufio.NewReader(opened)
	}
	number, err := roundTrip("EVAL", script, "1", a.key, a.owner, strconv.FormatInt(lease.Milliseconds(), 10))
	if err != nil {
		// A late answer must not be taken for the next one.
		connection.Close()
		connection = nil
		return 0, err
	}
	if number == 0 {
		return 0, zero
	}
	return number, nil
}

var (
	address    string
	patience   time.Duration
	connection net.Conn
	answers    *bufio.Reader
)

func roundTrip(words ...string) (int64, error) {
	connection.SetDeadline(time.Now().Add(patience))
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := connection.Write([]byte(command.String())); err != nil {
		return 0, err
	}
	line, err := answers.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != ':' {
		return 0, fmt.Errorf("the server answered %q", line)
	}
	return strconv.ParseInt(strings.TrimSpace(line[1:]), 10, 64)
}

type request struct {
	ID      uint64 `json:"id"`
	Op      string `json:"op"`
	Key     string `json:"key"`
	Owner   string `json:"owner"`
	LeaseMs int64  `json:"lease_ms"`
	Servers []struct {
		Host string `json:"host"`
		Port int    `json:"port"`
	} `json:"servers"`
}

type answer struct {
	ID     uint64 `json:"id"`
	OK     bool   `json:"ok"`
	Token  int64  `json:"token,omitempty"`
	Error  string `json:"error,omitempty"`
	Detail string `json:"detail,omitempty"`
}

func do(asked request) (token int64, err error) {
	lease := time.Duration(asked.LeaseMs) * time.Millisecond
	mine := attempt{asked.Key, asked.Owner}
	switch asked.Op {
	case "init":
		// A request must be answered within one lease.
		address, patience = net.JoinHostPort(asked.Servers[0].Host, strconv.Itoa(asked.Servers[0].Port)), lease/4
		return 0, nil
	case "acquire":
		return mine.acquire(lease)
	case "renew":
		return 0, mine.renew(lease)
	case "release", "cancel":
		return 0, mine.release()
	}
	return 0, errors.New("unsupported")
}

// code is the protocol's code for an error.
func code(err error) string {
	for _, known := range []error{errHeld, errLost, errRefused} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "timeout"
	}
	if err.Error() == "unsupported" {
		return "unsupported"
	}
	return "error"
}

func main() {
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		var asked request
		if err := json.Unmarshal(requests.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "no request:", err)
			os.Exit(1)
		}
		token, err := do(asked)
		given := answer{ID: asked.ID, OK: err == nil, Token: token}
		if err != nil {
			given.Error, given.Detail = code(err), err.Error()
		}
		json.NewEncoder(os.Stdout).Encode(given)
	}
}
