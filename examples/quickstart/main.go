// Quickstart shows lbprim at work on real traffic, in one command and for a few seconds.
//
// It makes a client, a balancer and seven servers, as network namespaces joined by virtual
// Ethernet where the kernel permits that to this user, else in memory, and tells a story: shares by
// weight, a server that dies and returns, a drain, persistence, a change of weights. The
// clients write down what they saw, and the program verifies from it that all it showed really
// happened: its exit status says so.
//
// Start reading at balancer.go: there the packages are put together as a program of yours would.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/lbprim/lbprim/examples/internal/lab"
)

// Exit statuses.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	opt, err := parseFlags(args, stdout)
	switch {
	case errors.Is(err, errHelp):
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return exitUsage
	}
	var why error
	if !opt.memory && lab.NeedsUser() {
		// An ordinary user gets the privileges for a network of his own in a user namespace of his own,
		// which a program enters by being started anew.
		if why = lab.DeviceError(); why == nil {
			status, err := lab.AsUser()
			if err == nil {
				return status
			}
			why = err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	l, mode, err := network(opt, why)
	if err != nil {
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return exitFailed
	}
	s := &story{opt: opt, mode: mode, lab: l, show: quiet{}}
	if !opt.json {
		fmt.Fprintln(stdout, mode)
		s.show = newDisplay(stdout)
	}
	r, err := s.run(ctx)
	s.show.close()
	err = errors.Join(err, l.Close())
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "quickstart: interrupted; nothing is left behind")
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return exitFailed
	case opt.json:
		err = r.json(stdout)
	default:
		r.text(stdout)
	}
	if err != nil || !r.Verified {
		return exitFailed
	}
	return exitOK
}

// network makes the best network that this user may have on this machine, and says in a line which
// one that is, and why. A reason why it cannot be the kernel's may be known already.
func network(opt options, why error) (l *lab.Lab, mode string, err error) {
	cfg := lab.Config{Clients: clientAddrs, Servers: 7, VIPs: []netip.Addr{vip(false), vip(true)}, Seed: opt.seed}
	if opt.memory {
		why = errors.New("-memory was given")
	} else if why == nil {
		if l, why = lab.Kernel(cfg); why == nil {
			return l, "lbprim quickstart: real traffic through network namespaces and a TUN device", nil
		}
	}
	l, err = lab.Memory(cfg)
	return l, fmt.Sprintf("lbprim quickstart: in memory, with packets it builds, since %v", why), err
}
