// Convert makes a file of l4lb from what other balancers are configured by: the common part, with a note on everything
// else.
//
//	convert keepalived /etc/keepalived/keepalived.conf > l4lb.yaml
//	ipvsadm -S -n | convert ipvsadm - > l4lb.yaml
//	convert haproxy -vip 192.0.2.80 /etc/haproxy/haproxy.cfg > l4lb.yaml
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/lbprim/lbprim/examples/internal/cli"
)

func main() { program().Main() }

func program() *cli.Program {
	return &cli.Program{
		Name:    "convert",
		Summary: "makes a file of l4lb from what other balancers are configured by",
		Text:    `FILE - is standard input. The result goes to standard output, with a comment on everything that was not taken over, which standard error has, too. Check it by l4lb check. Exit status 1 if nothing could be taken over.`,
		Commands: []cli.Command{
			command("keepalived", "take over virtual servers, which keepalived gives to IPVS"),
			command("ipvsadm", "take over the virtual services of IPVS, as ipvsadm -S -n prints them"),
			command("haproxy", "take over frontends, backends and listens of mode tcp"),
		},
	}
}

func command(kind, summary string) cli.Command {
	return cli.Command{Name: kind, Args: "FILE", Least: 1, Summary: summary, Complete: "file", Flags: func(f *flag.FlagSet) cli.Run {
		local := f.String("local", "", "use full NAT with these `addresses`, separated by commas, so that servers need no route through the balancer")
		vip := new(string)
		if kind == "haproxy" {
			vip = f.String("vip", "", "the virtual `address` where it listens on all")
		}
		return func(_ context.Context, std cli.IO, args []string) error {
			return convert(kind, args[0], *local, *vip, std.Out, std.Err)
		}
	}}
}

func convert(kind, name, local, vip string, out, errs io.Writer) (err error) {
	var locals []netip.Addr
	var wildcard netip.Addr
	for _, text := range strings.FieldsFunc(local, func(r rune) bool { return r == ',' }) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return cli.Usage("-local %q: want IP addresses", text)
		}
		locals = append(locals, a)
	}
	if vip != "" {
		if wildcard, err = netip.ParseAddr(vip); err != nil {
			return cli.Usage("-vip %q: want an IP address", vip)
		}
	}
	text, err := read(name)
	if err != nil {
		return err
	}
	var s *setup
	switch kind {
	case "haproxy":
		s, err = fromHAProxy(text, wildcard)
	case "ipvsadm":
		s, err = fromIPVS(text)
	default:
		s, err = fromKeepalived(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, n := range s.notes {
		fmt.Fprintf(errs, "%s: %s\n", name, n)
	}
	if len(s.services) == 0 {
		return fmt.Errorf("%s: nothing that could be taken over", name)
	}
	_, err = out.Write(s.yaml(name, locals))
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
