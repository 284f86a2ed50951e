package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/netns"
)

// NeedsUser reports that Kernel needs a user namespace first, since the program is not
// root: see AsUser.
func NeedsUser() bool { return os.Geteuid() != 0 && !netns.Inside() }

// AsUser runs the program once more as root of a user namespace of its own, and returns its exit
// status. An error says that the kernel permits none; then nothing has run.
func AsUser() (status int, err error) { return netns.RunAsRoot() }

// DeviceError tells why /dev/net/tun cannot be opened, nil if it can.
func DeviceError() error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// Kernel makes the network of namespaces. Nothing of it outlives the process.
func Kernel(cfg Config) (l *Lab, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	var spaces []*netns.Namespace
	l = &Lab{Corrupt: func() uint64 { return 0 }}
	l.close = func() error {
		var errs []error
		if l.Device != nil {
			errs = append(errs, l.Device.Close())
		}
		for _, n := range spaces {
			errs = append(errs, n.Close())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			_ = l.Close()
			l = nil
		}
	}()
	for range 2 + cfg.Servers {
		n, err := netns.New()
		if err != nil {
			return l, err
		}
		spaces = append(spaces, n)
	}
	client, balancer, servers := spaces[0], spaces[1], spaces[2:]
	l.Client, l.Balancer = host{client}, host{balancer}

	var clientAddrs []netip.Prefix
	for i := range cfg.Clients {
		clientAddrs = append(clientAddrs, onLink(ClientAddr(false, i)), onLink(ClientAddr(true, i)))
	}
	if err := cable(balancer, "c0", 0, client, clientAddrs); err != nil {
		return l, err
	}
	// A balancer's route to many clients: they open far more connections than the default allows ports for.
	_ = client.Sysctl("net.ipv4.ip_local_port_range", "1024 65535")
	var names []string
	for i, n := range servers {
		l.Servers = append(l.Servers, host{n})
		names = append(names, fmt.Sprintf("s%d", i+1))
		if err := cable(balancer, names[i], byte(1+i), n, []netip.Prefix{onLink(ServerAddr(false, i)), onLink(ServerAddr(true, i))}); err != nil {
			return l, err
		}
	}
	if err := balancer.Router(); err != nil {
		return l, err
	}
	t := &tun.Config{Name: "lb0", Divert: names}
	for _, v := range cfg.VIPs {
		t.Routes = append(t.Routes, netip.PrefixFrom(v, v.BitLen()))
	}
	return l, balancer.Do(func() error {
		d, err := tun.Open(t)
		if err == nil {
			l.Device = d
		}
		return err
	})
}

func onLink(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(a, 24)
	}
	return netip.PrefixFrom(a, 64)
}

// cable joins the balancer and a host that has no other way out.
func cable(balancer *netns.Namespace, name string, number byte, h *netns.Namespace, addrs []netip.Prefix) error {
	gw4, gw6 := balancerAddr(false, number), balancerAddr(true, number)
	err := netns.Join(
		netns.End{NS: balancer, Name: name, Addrs: []netip.Prefix{onLink(gw4), onLink(gw6)}},
		netns.End{NS: h, Name: "eth0", Addrs: addrs})
	if err != nil {
		return err
	}
	return h.DefaultVia(gw4, gw6)
}

// host is a namespace.
type host struct{ ns *netns.Namespace }

func (h host) Dial(ctx context.Context, network string, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	d := &net.Dialer{}
	if from.IsValid() {
		local := netip.AddrPortFrom(from, 0)
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(local)
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(local)
		}
	}
	return h.ns.DialWith(ctx, d, network, to.String())
}

func (h host) Listen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	return h.ns.Listen(ctx, "tcp", at.String())
}

func (h host) ListenPacket(ctx context.Context, at netip.AddrPort) (net.PacketConn, error) {
	return h.ns.ListenPacket(ctx, "udp", at.String())
}
