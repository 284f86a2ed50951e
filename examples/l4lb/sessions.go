package main

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/policy"
)

// filter chooses sessions. The zero filter takes all.
type filter struct {
	service, node string
	client, vip   span
	protocol      uint8
	hasProtocol   bool
}

// span is an address, a network, or an address and port. The zero span has everything.
type span struct {
	net  netip.Prefix
	port uint16
}

func parseSpan(s string) (span, error) {
	if s == "" {
		return span{}, nil
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return span{netip.PrefixFrom(ap.Addr(), ap.Addr().BitLen()), ap.Port()}, nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return span{net: netip.PrefixFrom(a, a.BitLen())}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return span{}, fmt.Errorf("%q: want an address, a network, or an address and port", s)
	}
	return span{net: p.Masked()}, nil
}

func (s span) has(ap netip.AddrPort) bool {
	return !s.net.IsValid() || s.net.Contains(ap.Addr()) && (s.port == 0 || s.port == ap.Port())
}

// parseProtocol reads a protocol's name or number; "" is tcp.
func parseProtocol(s string) (uint8, error) {
	if s == "" {
		s = "tcp"
	}
	p, err := policy.ParseProtocol(strings.ToLower(s))
	number, ok := p.Number()
	if err != nil || !ok {
		return 0, fmt.Errorf("proto %q: want tcp, udp, icmp or a number", s)
	}
	return number, nil
}

// parseFilter reads the query of a request.
func parseFilter(q url.Values) (f filter, err error) {
	f.service, f.node = q.Get("service"), q.Get("node")
	if f.client, err = parseSpan(q.Get("client")); err != nil {
		return f, fmt.Errorf("client: %w", err)
	}
	if f.vip, err = parseSpan(q.Get("vip")); err != nil {
		return f, fmt.Errorf("vip: %w", err)
	}
	if s := q.Get("protocol"); s != "" {
		if f.protocol, err = parseProtocol(s); err != nil {
			return f, err
		}
		f.hasProtocol = true
	}
	return f, nil
}

func (f *filter) match(s *dataplane.Session) bool {
	if f.service != "" && f.service != s.Service || f.hasProtocol && f.protocol != s.Protocol || !f.client.has(s.Client) || !f.vip.has(s.VIP) {
		return false
	}
	if f.node == "" || f.node == s.NodeName {
		return true
	}
	_, name, _ := strings.Cut(s.NodeName, "/")
	return f.node == name
}

func describe(s *dataplane.Session) sessionReply {
	out := sessionReply{
		Protocol: policy.ProtocolNumber(s.Protocol).String(), Client: s.Client.String(), VIP: s.VIP.String(), Node: s.Node.String(),
		NodeName: s.NodeName, Service: s.Service, Phase: s.Phase, Direct: s.Direct(),
		In: count(s.In), Out: count(s.Out), Begun: s.Begun, Last: s.Last,
	}
	if s.Local.IsValid() {
		out.Local = s.Local.String()
	}
	return out
}
