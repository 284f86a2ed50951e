// Convert makes a file of l4lb from what other balancers are configured by: the common part, with a note on everything
// else.
//
//	convert keepalived /etc/keepalived/keepalived.conf > l4lb.yaml
//	convert haproxy -vip 192.0.2.80 /etc/haproxy/haproxy.cfg > l4lb.yaml
package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/lbprim/lbprim/examples/internal/cli"
)

const usage = `Convert makes a file of l4lb from what other balancers are configured by.

Usage:
  convert keepalived FILE          virtual servers, which keepalived gives to IPVS
  convert haproxy FILE             frontends, backends and listens of mode tcp

FILE - is standard input. The result goes to standard output, with a comment on everything that was not taken over, which
standard error has, too. Check it by l4lb check. Exit status 1 if nothing could be taken over.

Options:
  -vip ADDR       haproxy: the virtual address where it listens on all
  -local ADDR,…   use full NAT with these addresses, so that servers need no route through the balancer
`

func main() { program().Main() }

func program() *cli.Program {
	return &cli.Program{Name: "convert", Usage: usage, Commands: []cli.Command{
		{Name: "keepalived", Run: func(_ context.Context, args []string, out, errs io.Writer) error {
			return convert("keepalived", args, out, errs)
		}},
		{Name: "haproxy", Run: func(_ context.Context, args []string, out, errs io.Writer) error {
			return convert("haproxy", args, out, errs)
		}},
	}}
}

func convert(kind string, args []string, out, errs io.Writer) error {
	f := cli.Flags(kind)
	local := f.String("local", "", "")
	vip := f.String("vip", "", "")
	rest, err := cli.Args(f, args, 1, 1, "a file")
	if err != nil {
		return err
	}
	var locals []netip.Addr
	var wildcard netip.Addr
	for _, text := range strings.FieldsFunc(*local, func(r rune) bool { return r == ',' }) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return cli.Usagef("-local %q: want IP addresses", text)
		}
		locals = append(locals, a)
	}
	if *vip != "" {
		if wildcard, err = netip.ParseAddr(*vip); err != nil {
			return cli.Usagef("-vip %q: want an IP address", *vip)
		}
	}
	text, err := read(rest[0])
	if err != nil {
		return err
	}
	var s *setup
	if kind == "haproxy" {
		s, err = fromHAProxy(text, wildcard)
	} else {
		s, err = fromKeepalived(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", rest[0], err)
	}
	for _, n := range s.notes {
		fmt.Fprintf(errs, "%s: %s\n", rest[0], n)
	}
	if len(s.services) == 0 {
		return fmt.Errorf("%s: nothing that could be taken over", rest[0])
	}
	_, err = out.Write(s.yaml(rest[0], locals))
	return err
}

func read(name string) (string, error) {
	if name == "-" {
		b, err := io.ReadAll(os.Stdin)
		return string(b), err
	}
	b, err := os.ReadFile(name)
	return string(b), err
}
