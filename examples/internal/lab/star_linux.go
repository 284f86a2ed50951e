package lab

import (
	"errors"
	"net/netip"

	"github.com/lbprim/lbprim/internal/netns"
)

// Star makes n hosts that reach each other through a router, as network namespaces. Nothing of it outlives the process.
func Star(n int) (hosts []StarHost, close func() error, err error) {
	var spaces []*netns.Namespace
	close = func() error {
		var errs []error
		for _, s := range spaces {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			_ = close()
		}
	}()
	for range 1 + n {
		s, err := netns.New()
		if err != nil {
			return nil, close, err
		}
		spaces = append(spaces, s)
	}
	router := spaces[0]
	if err := router.Router(); err != nil {
		return nil, close, err
	}
	for i, s := range spaces[1:] {
		at, gateway := netip.AddrFrom4([4]byte{10, 90, byte(i), 2}), netip.AddrFrom4([4]byte{10, 90, byte(i), 1})
		err := netns.Join(
			netns.End{NS: router, Name: name(i), Addrs: []netip.Prefix{netip.PrefixFrom(gateway, 24)}},
			netns.End{NS: s, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(at, 24)}})
		if err == nil {
			err = s.DefaultVia(gateway)
		}
		if err != nil {
			return nil, close, err
		}
		hosts = append(hosts, StarHost{Sockets: s, Addr: at})
	}
	return hosts, close, nil
}
