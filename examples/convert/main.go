// Convert makes a file of l4lb from what other balancers are configured by: the common part, with a note on everything
// else.
//
//	convert keepalived /etc/keepalived/keepalived.conf > l4lb.yaml
//	ipvsadm -S -n | convert ipvsadm - > l4lb.yaml
//	convert haproxy -vip 192.0.2.80 /etc/haproxy/haproxy.cfg > l4lb.yaml
package main

import (
	"context"
	"errors"
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
		Text: `FILE - is standard input. The result goes to standard output, with a comment on everything that was not taken over, which standard error
has, too. Nothing else is written or changed. Such as

  convert keepalived -interfaces eth1 /etc/keepalived/keepalived.conf > l4lb.yaml
  ipvsadm -S -n | convert ipvsadm -interfaces eth1 - > l4lb.yaml
  convert haproxy -vip 192.0.2.80 -local 10.0.0.250 /etc/haproxy/haproxy.cfg > l4lb.yaml
  l4lb check l4lb.yaml

Exit status: 0 done, look at what was not taken over; 1 the file is wrong, or nothing could be taken over; 2 wrong usage.`,
		Commands: []cli.Command{
			command("keepalived", "take over virtual servers, which keepalived gives to IPVS"),
			command("ipvsadm", "take over the virtual services of IPVS, as ipvsadm -S -n prints them"),
			command("haproxy", "take over frontends, backends and listens of mode tcp"),
		},
	}
}

// options are what the command line adds to the file.
type options struct {
	locals, addresses []netip.Addr
	interfaces        []string
	wildcard          netip.Addr
}

func command(kind, summary string) cli.Command {
	return cli.Command{Name: kind, Args: "FILE", Least: 1, Summary: summary, Complete: "file", Flags: func(f *flag.FlagSet) cli.Run {
		local := f.String("local", "", "use full NAT with these `addresses`, separated by commas, so that servers need no route through the balancer")
		addresses := f.String("addresses", "", "the balancer's own `addresses`, one of each family: tunnels come from them")
		interfaces := f.String("interfaces", "", "`names` of the interfaces to the servers, separated by commas; with DR (gatewaying), of all to clients and servers")
		vip := new(string)
		if kind == "haproxy" {
			vip = f.String("vip", "", "the virtual `address` where it listens on all")
		}
		return func(_ context.Context, std cli.IO, args []string) error {
			var o options
			var err, err2, err3 error
			o.locals, err = addrs("local", *local)
			o.addresses, err2 = addrs("addresses", *addresses)
			if *vip != "" {
				if o.wildcard, err3 = netip.ParseAddr(*vip); err3 != nil {
					err3 = fmt.Errorf("-vip %q: want an IP address", *vip)
				}
			}
			if err := errors.Join(err, err2, err3); err != nil {
				return cli.Usage("%v", err)
			}
			o.interfaces = split(*interfaces)
			return convert(kind, args[0], o, std.Out, std.Err)
		}
	}}
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

func addrs(flag, text string) (all []netip.Addr, err error) {
	for _, t := range split(text) {
		a, err := netip.ParseAddr(t)
		if err != nil {
			return nil, fmt.Errorf("-%s %q: want IP addresses, separated by commas", flag, t)
		}
		all = append(all, a)
	}
	return all, nil
}

func convert(kind, name string, o options, out, errs io.Writer) error {
	text, err := read(name)
	if err != nil {
		return err
	}
	var s *setup
	switch kind {
	case "haproxy":
		s, err = fromHAProxy(text, o.wildcard)
	case "ipvsadm":
		s, err = fromIPVS(text)
	default:
		s, err = fromKeepalived(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.families()
	if err := s.fits(o); err != nil {
		return err
	}
	for _, n := range s.notes {
		fmt.Fprintf(errs, "%s: %s\n", name, n)
	}
	if len(s.services) == 0 {
		return fmt.Errorf("%s: nothing that could be taken over", name)
	}
	_, err = out.Write(s.yaml(name, o))
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
