package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// options are what the command line says.
type options struct {
	duration time.Duration
	json     bool
	memory   bool
	seed     uint64
}

const (
	shortest = 6 * time.Second
	longest  = time.Hour

	validDurations = "6s to 1h"
)

const help = `Usage: quickstart [flags]

Shows a load balancer at work and verifies what it shows: it makes a small network of its own, with
three web servers, a pair of HTTPS servers and a pair of UDP echo servers behind an IPv4 and an
IPv6 virtual address, sends real traffic through them, lets a server die and return, drains
another, and changes weights meanwhile. Nothing outside the program is touched, and nothing is left behind.

The exit status is 0 if everything shown really happened, 1 if not, 2 for bad flags, 130 after Ctrl-C.

Flags:
  -duration D   how long the story takes, %s (default %v)
  -json         print only a report in JSON, at the end
  -memory       play in memory, also where the kernel would permit namespaces and a TUN device
  -seed N       of what clients ask for and in which order, 0 to 2^64-1 (default 1)
  -h            this text
`

const defaultDuration = 12 * time.Second

// errHelp says that only the help was wanted.
var errHelp = errors.New("help")

// parseFlags reads the command line. The error names the flag, its value and what is valid.
func parseFlags(args []string, out io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.DurationVar(&o.duration, "duration", defaultDuration, "")
	fs.BoolVar(&o.json, "json", false, "")
	fs.BoolVar(&o.memory, "memory", false, "")
	fs.Uint64Var(&o.seed, "seed", 1, "")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err := fmt.Fprintf(out, help, validDurations, defaultDuration)
		return o, errors.Join(errHelp, err)
	case err != nil:
		return o, fmt.Errorf("%w (valid: -duration %s, -json, -memory, -seed 0 to 2^64-1, -h)", err, validDurations)
	case fs.NArg() > 0:
		return o, fmt.Errorf("argument %q: none is expected, only flags; see -h", fs.Arg(0))
	case o.duration < shortest || o.duration > longest:
		return o, fmt.Errorf("-duration %v: must be %s", o.duration, validDurations)
	}
	return o, nil
}
