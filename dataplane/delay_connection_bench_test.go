package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// delayedStep is a packet of a connection with delayed binding. Numbers count from the first byte of each side's stream.
type delayedStep struct {
	back     bool // from the node
	flags    uint8
	seq, ack uint32
	data     []byte
}

// delayedSteps is a connection as Linux peers have it: a question, an answer, a last word of the client's, and the end.
func delayedSteps(question, answer, last []byte) []delayedStep {
	q, a, l := uint32(len(question)), uint32(len(answer)), uint32(len(last))
	steps := []delayedStep{
		{false, splice.SYN, 0, 0, nil},
		{false, splice.ACK, 1, 1, nil},
		{false, splice.ACK | splice.PSH, 1, 1, question},
		{true, splice.ACK | splice.SYN, 0, 1, nil},
		{true, splice.ACK, 1, 1 + q, nil},
		{true, splice.ACK | splice.PSH, 1, 1 + q, answer},
		{false, splice.ACK, 1 + q, 1 + a, nil},
	}
	if l > 0 {
		steps = append(steps, delayedStep{false, splice.ACK | splice.PSH, 1 + q, 1 + a, last})
	}
	return append(steps,
		delayedStep{true, splice.ACK | splice.FIN, 1 + a, 1 + q + l, nil},
		delayedStep{false, splice.ACK | splice.FIN, 1 + q + l, 2 + a, nil},
		delayedStep{true, splice.ACK, 2 + a, 2 + q + l, nil})
}

// resumption is what a client and a server of TLS 1.2 say that resume a session by its ID.
func resumption(id [32]byte) (question, answer, last []byte) {
	u16 := binary.BigEndian.AppendUint16
	record := func(typ byte, body []byte) []byte {
		return append(u16([]byte{typ, 3, 3}, uint16(len(body))), body...)
	}
	message := func(typ byte, body []byte) []byte { return append(u16([]byte{typ, 0}, uint16(len(body))), body...) }
	hello := append([]byte{3, 3}, make([]byte, 32)...)
	hello = append(append(hello, 32), id[:]...)
	ciphers := make([]byte, 56)
	for i := range ciphers {
		ciphers[i] = 0xc0 + byte(i&1)
	}
	client := append(u16(slices.Clone(hello), uint16(len(ciphers))), ciphers...)
	client = append(client, 1, 0)
	client = append(u16(client, 75), 0, 23, 0, 71)
	client = append(client, make([]byte, 71)...)
	server := slices.Concat(hello, []byte{0xc0, 0x2b, 0})
	server = append(server, 0, 5, 0xff, 1, 0, 1, 0)
	end := append(record(20, []byte{1}), record(22, make([]byte, 40))...)
	return record(22, message(1, client)), append(record(22, message(2, server)), end...), end
}

// delayedLab has clients and nodes that speak the numbers which the Plane has given them.
type delayedLab struct {
	p         *testPlane
	fam       family
	dport     uint16
	steps     []delayedStep
	templates [][]byte // of the client's, and of the node's
	conns     []delayedConn
	begun     uint32
	now       func() time.Time
	buf       []byte
}

type delayedConn struct {
	client, node netip.AddrPort
	isn          uint32 // of the client, to both
	ours, theirs uint32 // of the Plane to the client, and of the node to the Plane
	val          uint32 // the Plane's clock towards the client
	bytes        [][]byte
}

func (l *delayedLab) template(s *delayedStep) []byte {
	seg := splice.Segment{Flags: s.flags, Window: 502, Payload: s.data, Options: splice.Options{Timestamps: true}}
	if s.flags&splice.SYN != 0 {
		seg.Window = 64240
		seg.Options.MSS, seg.Options.HasScale, seg.Options.Scale, seg.Options.SACKPermitted = 1460, true, 7, true
	}
	ip := wire.IPv4Len
	if l.fam.vip.Is6() {
		ip = wire.IPv6Len
	}
	b := seg.Append(make([]byte, ip), 0, 0)
	src, dst := l.fam.client.AsSlice(), l.fam.vip.AsSlice()
	wire.PutHeader(b, src, dst, wire.ProtoTCP, 64, 0, len(b))
	return b
}

// make writes a step of a connection into its packet.
func (l *delayedLab) make(c *delayedConn, i int) {
	s := &l.steps[i]
	c.bytes[i] = append(c.bytes[i][:0], l.templates[i]...)
	b := c.bytes[i]
	at := wire.IPv4Len
	src, dst := c.client, ap(l.fam.vip, l.dport)
	seq, ack := c.isn+s.seq, c.ours+s.ack
	val, ecr := uint32(1000+i), c.val
	if s.back {
		src, dst = c.node, c.client
		seq, ack = c.theirs+s.seq, c.isn+s.ack
		val, ecr = uint32(77000+i), 1000
	}
	if s.flags&splice.ACK == 0 {
		ack, ecr = 0, 0
	}
	from, to := src.Addr().AsSlice(), dst.Addr().AsSlice()
	if l.fam.vip.Is6() {
		at = wire.IPv6Len
	}
	wire.PutHeader(b, from, to, wire.ProtoTCP, 64, 0, len(b))
	t := b[at:]
	binary.BigEndian.PutUint16(t, src.Port())
	binary.BigEndian.PutUint16(t[2:], dst.Port())
	binary.BigEndian.PutUint32(t[4:], seq)
	binary.BigEndian.PutUint32(t[8:], ack)
	ts := t[24:] // behind two that fill up
	if s.flags&splice.SYN != 0 {
		ts = t[28:] // behind the MSS, and that SACK is permitted
	}
	binary.BigEndian.PutUint32(ts, val)
	binary.BigEndian.PutUint32(ts[4:], ecr)
	binary.BigEndian.PutUint16(t[16:], 0)
	binary.BigEndian.PutUint16(t[16:], wire.PseudoSum(from, to, wire.ProtoTCP, len(t)).AddBytes(t).Checksum())
}

// learn takes the numbers from what the Plane has sent.
func (l *delayedLab) learn(c *delayedConn, out [][]byte) {
	for _, o := range out {
		b := o[Headroom:]
		var v wire.View
		var s splice.Segment
		if wire.Parse(b, &v) != wire.OK || !splice.Parse(b[v.L4:v.End], &s) {
			continue
		}
		switch f := flowOf(b, &v); {
		case f.Dst() != c.client && s.Flags&splice.SYN != 0:
			c.node = f.Dst()
		case f.Dst() == c.client && s.Flags&splice.SYN != 0:
			c.ours, c.val = s.Seq, s.Options.TSVal
		}
	}
}

// begin makes new connections.
func (l *delayedLab) begin() {
	for i := range l.conns {
		c := &l.conns[i]
		l.begun++
		a := l.fam.client.AsSlice()
		binary.BigEndian.PutUint32(a[len(a)-4:], 0x0b000000+l.begun>>14)
		addr, _ := netip.AddrFromSlice(a)
		c.client = ap(addr, 1024+uint16(l.begun&(1<<14-1)))
		c.isn, c.theirs = l.begun*7919, l.begun*104729
		if c.bytes == nil {
			c.bytes = make([][]byte, len(l.steps))
		}
	}
}

func newDelayedLab(t testing.TB, fam family, tls bool, conns int, change ...func(*Config, *Service)) *delayedLab {
	l := &delayedLab{now: time.Now, fam: fam, dport: 80, conns: make([]delayedConn, conns), buf: make([]byte, ReadOffset+2048)}
	var d Delay
	if tls {
		l.dport = 443
		farm, err := sslpersist.NewFarm(&sslpersist.Settings[steering.NodeID]{Ports: []uint16{443}})
		require.NoError(t, err)
		d = Delay{Read: ReadTLS, Sessions: farm}
		l.steps = delayedSteps(resumption([32]byte{1, 2, 3}))
	} else {
		d = Delay{Read: ReadHTTP}
		l.steps = delayedSteps([]byte("GET / HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: bench\r\nAccept: */*\r\nConnection: close\r\n\r\n"),
			append([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n"), make([]byte, 100)...), nil)
	}
	l.p = newPlane(t, fam, append([]func(*Config, *Service){func(c *Config, s *Service) {
		c.MaxSessions = 1 << 16
		if !tls {
			rules, err := l7.Compile(&l7.Config{Default: l7.Action{Do: l7.Reply, Code: 404}},
				l7.Rule{Index: 1, First: l7.Method{Kind: l7.PathPrefix, Value: "/no"}, Action: l7.Action{Do: l7.Drop}},
				l7.Rule{Index: 2, First: l7.Method{Kind: l7.PathPrefix, Value: "/"}, Action: l7.Action{Do: l7.Farm, Farm: "all"}})
			require.NoError(t, err)
			d.Rules, d.Farms = rules, map[string]*steering.Pool{"all": s.Pool}
		}
		s.Delay = &d
		c.Policies = table(t, rule("tcp", fmt.Sprintf("%v tcp/%d", fam.vip, l.dport), s))
	}}, change...)...)
	for i := range l.steps {
		l.templates = append(l.templates, l.template(&l.steps[i]))
	}
	return l
}

// run has all connections take one step after another, each packet in a batch of its own, and returns how many packets came out of it. timed is called
// around what is the Plane's work.
func (l *delayedLab) run(timed func(begin bool)) (sent int) {
	l.begin()
	bufs, sizes := [][]byte{l.buf}, []int{0}
	for i := range l.steps {
		for j := range l.conns {
			l.make(&l.conns[j], i)
		}
		learns := l.steps[i].flags&(splice.SYN|splice.PSH) != 0 && i < 4
		timed(true)
		for j := range l.conns {
			sizes[0] = copy(l.buf[ReadOffset:], l.conns[j].bytes[i])
			out := l.p.Process(l.now(), bufs, sizes, ReadOffset, nil)
			sent += len(out)
			if learns {
				l.learn(&l.conns[j], out)
			}
		}
		timed(false)
	}
	return sent
}

// BenchmarkDelayedConnection measures whole connections with delayed binding, of clients and nodes as Linux has them.
func BenchmarkDelayedConnection(b *testing.B) {
	for _, tls := range []bool{true, false} {
		for _, fam := range families2() {
			b.Run(fmt.Sprintf("%s/%s", map[bool]string{true: "TLS", false: "HTTP"}[tls], fam.name), func(b *testing.B) {
				const round = 256
				l := newDelayedLab(b, fam, tls, round)
				var used, start time.Duration
				timed := func(begin bool) {
					if now := cpuTime(); begin {
						start = now
					} else {
						used += now - start
					}
				}
				var rounds []float64
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				sent := 0
				for b.Loop() {
					used = 0
					sent += l.run(timed)
					rounds = append(rounds, float64(used)/round)
					if len(rounds)%16 == 0 {
						l.p.Step(time.Now())
					}
				}
				runtime.ReadMemStats(&after)
				st := l.p.Stats()
				require.EqualValues(b, len(rounds)*round, st.Delay.Spliced, "drops %v", l.p.drops())
				require.Zero(b, st.Delay.Held)
				require.Empty(b, l.p.drops())
				slices.Sort(rounds)
				b.ReportMetric(rounds[len(rounds)/2], "cpu-ns/conn")
				b.ReportMetric(rounds[0], "best-cpu-ns/conn")
				b.ReportMetric(float64(sent)/float64(len(rounds)*round), "sent/conn")
				b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(len(rounds)*round), "allocs/conn")
				b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(len(rounds)*round), "B/conn")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// TestDelayedConnectionPackets counts what the balancer sends: each answer of the node's acknowledges the client's question itself.
func TestDelayedConnectionPackets(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, tls := range []bool{true, false} {
			l := newDelayedLab(t, fam, tls, 4)
			now := time.Now()
			l.now = func() time.Time { return now }
			swallowed := 2 // the end of the client's handshake, and the node's bare acknowledgement
			require.Equal(t, 4*(len(l.steps)-swallowed), l.run(func(bool) {}), "TLS %v, drops %v", tls, l.p.drops())
			require.Empty(t, l.p.drops())
			st := l.p.Stats()
			require.EqualValues(t, 4, st.Delay.Spliced)
			require.Zero(t, st.Delay.Held)
		}
	})
}
