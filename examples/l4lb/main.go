// L4lb is a Layer 4 load balancer made of lbprim's packages: one YAML file, a TUN device or packet sockets, health checks, hot reload.
//
//	l4lb run FILE        balance
//	l4lb check FILE      say what is wrong with a file
//	l4lb explain FILE -src 192.0.2.9:40000 -dst 192.0.2.80:80
//	l4lb reference       every key of the file
package main

import (
	"context"
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

const usage = `L4lb balances TCP, UDP and ICMP at Layer 4.

Usage:
  l4lb run [-json] FILE       balance as the file says; SIGHUP or a changed file reloads it
  l4lb check FILE             check a file; prints every fault with its place
  l4lb explain FILE -src ADDR:PORT -dst ADDR:PORT [-proto tcp]
                              say what would happen to the first packet of a flow, all nodes being up
  l4lb reference              print every key of the file with its meaning
  l4lb schema                 print the JSON schema of the file, for editors
  l4lb example                print a file to begin with
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// command runs the program: status 0 is success, 1 a failure, 2 wrong usage.
func command(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(errs, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "run":
		err = runCommand(ctx, args[1:], errs)
	case "check":
		err = checkCommand(args[1:], out)
	case "explain":
		err = explainCommand(args[1:], out, errs)
	case "reference":
		err = conf.Reference(out, config{})
	case "schema":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(conf.Schema(config{}, "l4lb configuration, version 1"))
	case "example":
		_, err = io.WriteString(out, exampleFile)
	case "help", "-h", "-help", "--help":
		_, err = io.WriteString(out, usage)
	default:
		err = &usageError{fmt.Sprintf("%q: want run, check, explain, reference, schema or example", args[0])}
	}
	var u *usageError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &u):
		fmt.Fprintf(errs, "l4lb: %v\n\n%s", err, usage)
		return 2
	}
	fmt.Fprintf(errs, "%v\n", err)
	return 1
}

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// file parses flags on both sides of the one argument.
func file(f *flag.FlagSet, args []string) (string, error) {
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

func flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

func runCommand(ctx context.Context, args []string, errs io.Writer) error {
	f := flags("run")
	asJSON := f.Bool("json", false, "log in JSON")
	name, err := file(f, args)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(errs, nil))
	if *asJSON {
		log = slog.New(slog.NewJSONHandler(errs, nil))
	}
	return run(ctx, name, log, nil)
}

func checkCommand(args []string, out io.Writer) error {
	name, err := file(flags("check"), args)
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
	ps := newPools(nil)
	table, err := c.compile(ps)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: right: %d services, %d farms, %d nodes\n", name, len(c.Services), len(c.Farms), nodes)
	for r, cover := range table.Shadowed() {
		var names []string
		for _, by := range cover {
			names = append(names, by.Name)
		}
		fmt.Fprintf(out, "note: service %s is never reached: %s get all its packets\n", r.Name, strings.Join(names, ", "))
	}
	return nil
}

func explainCommand(args []string, out, errs io.Writer) error {
	f := flags("explain")
	src := f.String("src", "", "")
	dst := f.String("dst", "", "")
	proto := f.String("proto", "tcp", "")
	name, err := file(f, args)
	if err != nil {
		return err
	}
	from, err := netip.ParseAddrPort(*src)
	if err != nil {
		return &usageError{fmt.Sprintf("explain: -src %q: want an address and port such as 192.0.2.9:40000", *src)}
	}
	to, err := netip.ParseAddrPort(*dst)
	if err != nil {
		return &usageError{fmt.Sprintf("explain: -dst %q: want an address and port such as 192.0.2.80:80", *dst)}
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
	ps := newPools(nil)
	for _, fm := range c.Farms {
		fm.Check = nil // nobody checks here: all nodes count as up
	}
	table, err := c.compile(ps)
	if err != nil {
		return err
	}
	plane, err := dataplane.New(&dataplane.Config{Policies: table, MaxSessions: 1024, MaxAssociations: 1024})
	if err != nil {
		return err
	}
	defer plane.Close()
	e, err := plane.ExplainFlow(number, from, to)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, e)
	return err
}

// exampleFile is the file of l4lb example.
const exampleFile = `# l4lb: two web servers behind one address.
version: 1
device:
  type: tun              # or afpacket, with all interfaces
  interfaces: [eth1]     # where the servers are; their default route is this host
farms:
  web:
    metric: leastconns
    check: {method: http, path: /, interval: 2s}
    nodes:
      - {name: web1, address: "10.0.0.11:8080", weight: 2}
      - {name: web2, address: "10.0.0.12:8080"}
services:
  - name: web
    vip: 192.0.2.80
    protocol: tcp
    port: 80
    farm: web
`
