package main

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/intercept"
	"github.com/lbprim/lbprim/steering/path"
)

// start makes the hosts around the balancers: nodes, gateways and both ends. firstAnswer is how long the first answer of a flow takes, as over a WAN.
func (s *site) start(ctx context.Context, firstAnswer time.Duration) error {
	channels, err := paths(s).Channels()
	if err != nil {
		return err
	}
	for i := range nodes {
		if err := s.node(ctx, i, channels); err != nil {
			return err
		}
	}
	for i := range gateways {
		if err := s.gateway(ctx, i); err != nil {
			return err
		}
	}
	if err := s.receive(ctx, &s.wg, hostLAN, portEnd, func(_ netip.Addr, b []byte) {
		if p, err := parse(b); err == nil {
			s.ledger.answered(flowOf(p), p.seq, p.rst)
		}
	}); err != nil {
		return err
	}
	return s.server(ctx, firstAnswer)
}

func flowOf(p packet) flowshare.Flow { return flowshare.MakeFlow(p.protocol(), p.src, p.dst) }

// node writes down what it was sent, and sends it on by the channel that the balancer chose.
func (s *site) node(ctx context.Context, i int, channels []path.Channel) error {
	out, err := s.outlet(ctx, hostNode+i)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { out.Close() })
	return s.receive(ctx, &s.wg, hostNode+i, portNode, func(_ netip.Addr, b []byte) {
		if len(b) < 6 || int(b[1]) >= balancers {
			return
		}
		from, member, id, inner := b[0], b[1], path.ChannelID(binary.BigEndian.Uint32(b[2:])), b[6:]
		p, err := parse(inner)
		if err != nil {
			return
		}
		s.ledger.seen(flowOf(p), nodeName(i), intercept.Side(from))
		if at := slices.IndexFunc(channels, func(c path.Channel) bool { return c.ID == id }); at >= 0 {
			etherType := uint16(0x0800)
			if p.src.Addr().Is6() {
				etherType = 0x86dd
			}
			out.send(channels[at].Addr, portChannel, append(path.AppendHeader(nil, id, etherType), inner...))
			return
		}
		out.send(s.hosts[member].Addr, portBack, append([]byte{from}, inner...))
	})
}

// gateway forwards to the other end, and answers probes, while it is up.
func (s *site) gateway(ctx context.Context, i int) error {
	out, err := s.outlet(ctx, hostGate+i)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { out.Close() })
	s.up[i].Store(true)
	return s.receive(ctx, &s.wg, hostGate+i, portGate, func(_ netip.Addr, b []byte) {
		p, err := parse(b)
		switch {
		case err != nil || !s.up[i].Load():
		case p.dst.Addr() == s.hosts[hostGate+i].Addr:
			out.send(p.src.Addr(), int(p.src.Port()), b)
		default:
			out.send(s.hosts[hostWAN].Addr, portEnd, b)
		}
	})
}

// server writes down by which way packets come, and answers each over a link of its own choice: the ways there and back are not the same.
func (s *site) server(ctx context.Context, firstAnswer time.Duration) error {
	out, err := s.outlet(ctx, hostWAN)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { out.Close() })
	return s.receive(ctx, &s.wg, hostWAN, portEnd, func(from netip.Addr, b []byte) {
		p, err := parse(b)
		if err != nil {
			return
		}
		s.ledger.arrived(flowOf(p), s.way(from))
		answer := packet{src: p.dst, dst: p.src, tcp: p.tcp, seq: p.seq}
		r, err := answer.bytes()
		if err != nil {
			return
		}
		wait := time.Duration(0)
		if p.seq == 1 {
			wait = firstAnswer
		}
		time.AfterFunc(wait, func() {
			if ctx.Err() == nil {
				s.cross(out, int(p.seq)%2, intercept.WAN, r)
			}
		})
	})
}

// Ways a packet may have come.
const (
	wayBalancer = "balancer" // put out by a balancer: bypassed, or relayed for want of an uplink
	wayCable    = "cable"    // over a link whose balancers are both down
)

func (s *site) way(from netip.Addr) string {
	for i := range gateways {
		if s.hosts[hostGate+i].Addr == from {
			return uplinks[i]
		}
	}
	if from == s.hosts[hostLAN].Addr {
		return wayCable
	}
	return wayBalancer
}
