// Anycast is a Layer 4 load balancer that announces its virtual addresses by BGP, and withdraws those that it cannot serve.
//
//	anycast run FILE        balance and announce
//	anycast check FILE      say what is wrong with a file
//	anycast bird FILE       print the routers' side, for BIRD
//	anycast explain FILE -src 192.0.2.9:40000 -dst 192.0.2.80:80
//	anycast reference       every key of the file
//
// Several of them behind routers that use equal-cost routes share the load, and take each other's connections over; see anycast -h for how.
// It is a module of its own, since it brings a whole BGP speaker (GoBGP) that users of the library should not have to.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/policy"
)

const usage = `Anycast balances at Layer 4 and announces its virtual addresses by BGP.

Usage:
  anycast run [-json] FILE    balance and announce; SIGHUP or a changed file reloads it
  anycast check FILE          check a file; prints every fault with its place
  anycast bird FILE           print the routers' side of the BGP sessions, for BIRD 2
  anycast explain FILE -src ADDR:PORT -dst ADDR:PORT [-proto tcp]
                              say which node the first packet of a flow would get, all nodes being up
  anycast reference           print every key of the file with its meaning
  anycast schema              print the JSON schema of the file, for editors
  anycast example             print a file to begin with

How it works:

                    ┌─ balancer A ─┐ tunnels   ┌─ server 1 ─┐
  clients ─ router ─┤   (same VIP) ├───────────┼─ server 2 ─┼─ answers go to the clients directly
                    └─ balancer B ─┘           └─ server 3 ─┘

  Each balancer tells the router by BGP that it is the way to the virtual addresses (VIPs). The ways are equal, so the router spreads
  connections over all balancers; it keeps each connection with its balancer as long as the set of balancers stays as it is.

  Adding and losing balancers: the router then moves connections from one balancer to another. That is harmless if the other chooses the
  same server: balancers with the same seed and the same nodes do (Maglev over addresses and ports), and "lost-session: reselect", the
  default, has them go on with connections that they did not see begin. Only with "forward: tunnel" do servers answer past the balancers,
  so only then can connections move. What cannot be taken over are connections whose server the other balancer would not choose: those
  older than a change of the nodes.

  Withdrawing: a VIP with fewer usable nodes than its farm's min-nodes is withdrawn, so that other sites serve it, and announced again
  when there are enough, for announce-after at least. A VIP that flaps is held back for longer and longer (damping).

  Ending: SIGTERM withdraws all VIPs, serves what still comes for the time linger, and ends; a second SIGTERM ends at once. A balancer that
  dies is given up by the router as soon as the TCP session of BGP ends; one that hangs, after hold-time. "maintenance: true" in the
  file withdraws everything without ending.

To begin:
  anycast example > a.yaml; edit it; anycast check a.yaml
  anycast bird a.yaml         for the router: put it into bird.conf
  anycast run a.yaml          as root; then: curl the status address, also /sessions
  On each server: the VIPs on lo, and a tunnel end, for instance for ipip:
    ip addr add 192.0.2.80/32 dev lo; ip link set tunl0 up; sysctl -w net.ipv4.conf.tunl0.rp_filter=0
`

//go:embed example.yaml
var exampleFile string

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	hurry := make(chan os.Signal, 1)
	go func() {
		<-signals
		cancel()
		hurry <- <-signals
	}()
	status := command(ctx, hurry, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	os.Exit(status)
}

// command runs the program: status 0 is success, 1 a failure, 2 wrong usage.
func command(ctx context.Context, hurry <-chan os.Signal, args []string, out, errs io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(errs, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "run":
		err = runCommand(ctx, hurry, args[1:], errs)
	case "check":
		err = checkCommand(args[1:], out)
	case "bird":
		err = birdCommand(args[1:], out)
	case "explain":
		err = explainCommand(args[1:], out)
	case "reference":
		err = conf.Reference(out, config{})
	case "schema":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(conf.Schema(config{}, "anycast configuration, version 1"))
	case "example":
		_, err = io.WriteString(out, exampleFile)
	case "help", "-h", "-help", "--help":
		_, err = io.WriteString(out, usage)
	default:
		err = &usageError{fmt.Sprintf("%q: want run, check, bird, explain, reference, schema or example", args[0])}
	}
	var u *usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		return 0
	case errors.As(err, &u):
		fmt.Fprintf(errs, "anycast: %v\n\n%s", err, usage)
		return 2
	}
	fmt.Fprintf(errs, "%v\n", err)
	return 1
}

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// file parses flags on both sides of the one argument.
func file(f *flag.FlagSet, args []string) (string, error) {
	f.SetOutput(io.Discard)
	if err := f.Parse(args); err != nil {
		return "", asUsage(err)
	}
	if f.NArg() == 0 {
		return "", &usageError{f.Name() + ": want a file"}
	}
	name := f.Arg(0)
	if err := f.Parse(f.Args()[1:]); err != nil {
		return "", asUsage(err)
	}
	if f.NArg() > 0 {
		return "", &usageError{fmt.Sprintf("%s: %q: want one file only", f.Name(), f.Arg(0))}
	}
	return name, nil
}

func asUsage(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return &usageError{err.Error()}
}

func runCommand(ctx context.Context, hurry <-chan os.Signal, args []string, errs io.Writer) error {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	asJSON := f.Bool("json", false, "log in JSON")
	name, err := file(f, args)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(errs, nil))
	if *asJSON {
		log = slog.New(slog.NewJSONHandler(errs, nil))
	}
	return run(ctx, hurry, name, log)
}

func checkCommand(args []string, out io.Writer) error {
	name, err := file(flag.NewFlagSet("check", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	c, err := load(name)
	if err != nil {
		return err
	}
	nodes := 0
	for _, f := range c.Farms {
		nodes += len(f.Nodes)
	}
	fmt.Fprintf(out, "%s: right: %d virtual addresses, %d farms, %d nodes, %d routers\n", name, len(c.VIPs), len(c.Farms), nodes, len(c.BGP.Peers))
	for _, n := range c.notes() {
		fmt.Fprintf(out, "note: %s\n", n)
	}
	return nil
}

func birdCommand(args []string, out io.Writer) error {
	name, err := file(flag.NewFlagSet("bird", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	c, err := load(name)
	if err != nil {
		return err
	}
	return c.writeBird(out)
}

func explainCommand(args []string, out io.Writer) error {
	f := flag.NewFlagSet("explain", flag.ContinueOnError)
	src, dst, proto := f.String("src", "", ""), f.String("dst", "", ""), f.String("proto", "tcp", "")
	name, err := file(f, args)
	if err != nil {
		return err
	}
	var ends [2]netip.AddrPort
	for i, x := range []struct{ flag, text, like string }{{"src", *src, "192.0.2.9:40000"}, {"dst", *dst, "192.0.2.80:80"}} {
		if ends[i], err = netip.ParseAddrPort(x.text); err != nil {
			return &usageError{fmt.Sprintf("explain: -%s %q: want an address and port such as %s", x.flag, x.text, x.like)}
		}
	}
	p, err := policy.ParseProtocol(strings.ToLower(*proto))
	number, ok := p.Number()
	if err != nil || !ok {
		return &usageError{fmt.Sprintf("explain: -proto %q: want tcp, udp, icmp or a number", *proto)}
	}
	c, err := load(name)
	if err != nil {
		return err
	}
	for _, fm := range c.Farms {
		fm.Check = nil // nobody checks here: all nodes count as up
	}
	table, err := c.compile(newPools(nil))
	if err != nil {
		return err
	}
	plane, err := dataplane.New(&dataplane.Config{Policies: table, Addrs: c.Source, Seed: c.Seed, MaxSessions: 1024, MaxAssociations: 1024})
	if err != nil {
		return err
	}
	defer plane.Close()
	e, err := plane.ExplainFlow(number, ends[0], ends[1])
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, e)
	return err
}
