// Interceptor shows a cluster of four balancers in the path of a site's traffic, in one command: two pairs, each on a link of its own, in
// front of two nodes that optimise connections, with two uplinks.
//
//	              ┌─ b1 ─ b2 ─┐        n1, n2: nodes
//	LAN ─ east ───┤           ├── mpls ────── WAN
//	    ─ west ───┤           ├── internet ──
//	              └─ b3 ─ b4 ─┘
//
// Balancers are joined by steering/cluster over real sockets, each in a network namespace of its own; they decide by steering/intercept
// and steering/path. Balancers and uplinks fail and return, and the program shows what is redirected, relayed and bypassed, and verifies
// it from what the other hosts saw: its exit status says so.
//
// Start reading at member.go: there the packages are put together as a program of yours would. What is simulated are the cables: IP packets
// travel between the hosts in UDP datagrams.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lbprim/lbprim/examples/internal/lab"
)

const usage = `Interceptor shows a cluster of four balancers in the path of a site's traffic, live.

Usage: interceptor [options]

  -every D       least length of each of the eight acts, 0s to 1h (default 3s)
  -packets N     packets of each verified flow in each act, 2 to 1000 (default 4)
  -json          an object a line: "event" for what happens, "state" once a second and at the
                 end of each act, and "report" in the end
  -loopback      hosts are loopback addresses of this machine, not network namespaces (Linux)
  -lonely        balancers share no flows: the verification must notice, and the exit status be 1

The schedule: b1 crashes, b2 crashes, both return, b3 crashes and returns, the uplink mpls fails,
internet fails, both return. Conversations go on all the time. On a terminal a table renews itself;
elsewhere there is a line a second and a table for each act.

What it shows:
  redirected   packets that a balancer sent to a node: web by a load-balance rule, dns by the network services table
  bypassed     packets that it let pass: ssh by an in-path rule, ntp for want of a rule
  denied       connections that it answered by a reset: telnet, by an in-path rule
  relayed      packets that came back from a node and left as they would have, since no uplink was left
  learned      flows of which another balancer of the cluster knew the node
  out          how packets reached the servers: by an uplink, past a balancer that let them go, or over the
               cable that a link is whose balancers are both down

Exit status: 0 if all that was shown is true, 1 if not, 2 for wrong usage, 130 after Ctrl-C. Nothing outside
the program is touched, and nothing is left behind.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run returns the exit status.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	o := options{packets: 4, every: 3 * time.Second, firstAnswer: 300 * time.Millisecond, probeTimeout: 500 * time.Millisecond, patience: 2 * time.Minute}
	f := flag.NewFlagSet("interceptor", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	asJSON := f.Bool("json", false, "")
	f.BoolVar(&o.loopback, "loopback", false, "")
	f.BoolVar(&o.lonely, "lonely", false, "")
	f.IntVar(&o.packets, "packets", o.packets, "")
	f.DurationVar(&o.every, "every", o.every, "")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		return 0
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("%q: want no arguments", f.Arg(0))
	case err == nil && (o.packets < 2 || o.packets > 1000):
		err = fmt.Errorf("-packets %d: want 2 to 1000", o.packets)
	case err == nil && (o.every < 0 || o.every > time.Hour):
		err = fmt.Errorf("-every %v: want 0s to 1h", o.every)
	}
	if err != nil {
		fmt.Fprintf(errs, "interceptor: %v\n\n%s", err, usage)
		return 2
	}
	if !o.loopback && lab.NeedsUser() {
		status, err := lab.AsUser()
		if err == nil {
			return status
		}
		fmt.Fprintf(errs, "interceptor: on loopback addresses, since %v\n", err)
		o.loopback = true
	}
	return show(ctx, o, *asJSON, out, errs)
}

// show plays the story, and says what is true of it.
func show(ctx context.Context, o options, asJSON bool, out, errs io.Writer) int {
	d := newDisplay(out, asJSON)
	r, err := tell(ctx, o, d)
	d.close()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(errs, "interceptor: interrupted; nothing is left behind")
		return 130
	case err != nil:
		fmt.Fprintf(errs, "interceptor: %v\n", err)
		return 1
	}
	if j, ok := d.(*jsonLines); ok {
		j.report(r)
	} else {
		r.text(out)
	}
	if !r.Verified {
		return 1
	}
	return 0
}
