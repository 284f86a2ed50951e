package dataplane

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgryski/go-maglev"
	"github.com/gaissmai/bart"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/maypok86/otter/v2"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// flow is the key of a session.
type flow struct {
	src, dst     [4]byte
	sport, dport uint16
	proto        uint8
}

// session is what a flow becomes.
type session struct {
	node    tcpip.Address
	port    uint16
	packets atomic.Uint64
	octets  atomic.Uint64
	last    atomic.Int64
}

// store keeps sessions, for as long as they are used.
type store interface {
	load(f flow, now int64) *session
	add(f flow, s *session, now int64)
}

// sharded is a map in 64 parts, each with a lock, whose sessions know when they were last used.
type sharded [64]struct {
	sync.RWMutex
	m map[flow]*session
	_ [32]byte
}

func newSharded(n int) *sharded {
	s := new(sharded)
	for i := range s {
		s[i].m = make(map[flow]*session, n/len(s))
	}
	return s
}

func (f *flow) shard() uint32 {
	return ((uint32(f.src[2])<<16|uint32(f.src[3])<<8)*2654435761 ^ uint32(f.sport)*2246822519) >> 26
}

func (s *sharded) load(f flow, now int64) *session {
	part := &s[f.shard()]
	part.RLock()
	x := part.m[f]
	part.RUnlock()
	if x == nil || now-x.last.Load() > int64(time.Minute) {
		return nil
	}
	x.last.Store(now)
	return x
}

func (s *sharded) add(f flow, x *session, now int64) {
	x.last.Store(now)
	part := &s[f.shard()]
	part.Lock()
	part.m[f] = x
	part.Unlock()
}

// cache is otter, with its own expiry.
type cache struct{ c *otter.Cache[flow, *session] }

func newCache(t testing.TB, n int) *cache {
	c, err := otter.New(&otter.Options[flow, *session]{
		MaximumSize: 2 * n, InitialCapacity: n, ExpiryCalculator: otter.ExpiryAccessing[flow, *session](time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.StopAllGoroutines() })
	return &cache{c}
}

func (c *cache) load(f flow, _ int64) *session {
	x, ok := c.c.GetIfPresent(f)
	if !ok {
		return nil
	}
	return x
}

func (c *cache) add(f flow, x *session, _ int64) { c.c.Set(f, x) }

// stack is a balancer of those libraries: NAT of UDP over IPv4, one way.
type stack struct {
	ip      layers.IPv4
	udp     layers.UDP
	rest    gopacket.Payload
	parser  *gopacket.DecodingLayerParser
	found   []gopacket.LayerType
	vips    bart.Table[uint16]
	nodes   []tcpip.Address
	choose  *maglev.Table
	store   store
	dropped int
}

func newStack(st store) *stack {
	s := &stack{store: st, found: make([]gopacket.LayerType, 0, 4)}
	s.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeIPv4, &s.ip, &s.udp, &s.rest)
	s.vips.Insert(netip.PrefixFrom(vip, 32), 8080)
	var names []string
	for i := range nodes {
		s.nodes = append(s.nodes, tcpip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}))
		names = append(names, fmt.Sprint("n", i))
	}
	s.choose = maglev.New(names, maglev.SmallM)
	return s
}

// process translates one packet in place.
func (s *stack) process(b []byte, now int64) {
	if s.parser.DecodeLayers(b, &s.found) != nil || len(s.found) < 2 {
		s.dropped++
		return
	}
	f := flow{[4]byte(s.ip.SrcIP), [4]byte(s.ip.DstIP), uint16(s.udp.SrcPort), uint16(s.udp.DstPort), uint8(s.ip.Protocol)}
	x := s.store.load(f, now)
	if x == nil {
		port, ok := s.vips.Lookup(netip.AddrFrom4(f.dst))
		if !ok {
			s.dropped++
			return
		}
		h := uint64(f.src[3])<<40 | uint64(f.src[2])<<32 | uint64(f.src[1])<<24 | uint64(f.sport)
		x = &session{node: s.nodes[s.choose.Lookup(h*0x9e3779b97f4a7c15)], port: port}
		s.store.add(f, x, now)
	}
	x.packets.Add(1)
	x.octets.Add(uint64(len(b)))
	ip := header.IPv4(b)
	old := ip.DestinationAddress()
	ip.SetDestinationAddressWithChecksumUpdate(x.node)
	udp := header.UDP(ip.Payload())
	udp.UpdateChecksumPseudoHeaderAddress(old, x.node, true)
	udp.SetDestinationPortWithChecksumUpdate(x.port)
}
