// Judges a history of a lock whose holder alone can release it, by Porcupine.
//
// The history is in the format of Jepsen, one operation on each line, as `checkers` writes it. The program prints
// `linearizable` or what else Porcupine says.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/anishathalye/porcupine"
)

// The owner of the lock is its state; nobody holds it at the start.
const free = -1

type input struct {
	client  int
	acquire bool
}

var ownerMutex = porcupine.Model{
	Init: func() interface{} { return free },
	Step: func(state, in, _ interface{}) (bool, interface{}) {
		owner, op := state.(int), in.(input)
		if op.acquire {
			return owner == free, op.client
		}
		return owner == op.client, free
	},
	Hash: func(state interface{}) uint64 { return uint64(state.(int) + 1) },
}

func read(path string) ([]porcupine.Event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var events []porcupine.Event
	open := map[int]int{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var client int
		line := lines.Text()
		if _, err := fmt.Sscanf(line, "{:process %d,", &client); err != nil {
			return nil, fmt.Errorf("%q: expected an operation: %w", line, err)
		}
		if strings.Contains(line, ":invoke") {
			op := input{client, strings.Contains(line, ":acquire")}
			open[client] = len(events)
			events = append(events, porcupine.Event{ClientId: client, Kind: porcupine.CallEvent, Value: op, Id: len(events)})
		} else {
			events = append(events, porcupine.Event{ClientId: client, Kind: porcupine.ReturnEvent, Id: open[client]})
		}
	}
	return events, lines.Err()
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: porcupine-owner-mutex FILE")
		os.Exit(64)
	}
	events, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(64)
	}
	if porcupine.CheckEvents(ownerMutex, events) {
		fmt.Println("linearizable")
	} else {
		fmt.Println("not linearizable")
	}
}
