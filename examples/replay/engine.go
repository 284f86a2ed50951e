package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/pcapdev"
	"github.com/lbprim/lbprim/dataplane/pcapng"
)

// maxFlows bounds what is remembered of a capture.
const maxFlows = 4 << 20

// flow is a conversation from a client to a virtual address, and what would become of it.
type flow struct {
	Protocol string         `json:"protocol"`
	Client   netip.AddrPort `json:"client"`
	VIP      netip.AddrPort `json:"vip"`
	Service  string         `json:"service,omitempty"`
	Node     string         `json:"node,omitempty"`
	// Fate is forwarded, answered, or why its first packet that was dropped was.
	Fate    string    `json:"fate"`
	Packets uint64    `json:"packets"`
	Octets  uint64    `json:"octets"`
	Lost    uint64    `json:"dropped,omitempty"`
	Answers uint64    `json:"answers,omitempty"` // packets of the capture from the virtual address
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`

	key clienttable.Flow
}

// where is what is compared between two configurations.
func (f *flow) where() string {
	if f == nil {
		return "not balanced"
	}
	if f.Node != "" {
		return f.Node
	}
	return f.Fate
}

// counts are the packets of a replay by what became of them.
type counts struct {
	Packets   uint64            `json:"packets"`
	NotIP     uint64            `json:"notIP"`
	Forwarded uint64            `json:"forwarded"`
	Passed    uint64            `json:"passed"`
	Answered  uint64            `json:"answered"`
	Held      uint64            `json:"held"`
	Dropped   uint64            `json:"dropped"`
	Written   uint64            `json:"written"`
	Unlisted  uint64            `json:"unlistedFlows,omitempty"` // beyond maxFlows
	Drops     map[string]uint64 `json:"drops,omitempty"`
}

// engine is one configuration that packets pass through.
type engine struct {
	name   string
	plane  *dataplane.Plane
	frames bool
	flows  map[clienttable.Flow]*flow
	order  []*flow
	counts counts
	out    *pcapng.Writer
	err    error // of out

	buf     []byte
	stepped time.Time
}

// newEngine has room for sessions; 0 is what the file says.
func newEngine(name string, c *config, sessions int, down []string) (*engine, error) {
	if sessions == 0 {
		sessions = c.Sessions
	}
	plane, err := c.plane(sessions, c.Remember)
	if err != nil {
		return nil, err
	}
	e := &engine{name: name, plane: plane, frames: c.ethernet(), flows: map[clienttable.Flow]*flow{}, buf: make([]byte, dataplane.ReadOffset+1<<16+64)}
	for _, n := range down {
		if plane.SetUp(n, false) == 0 {
			plane.Close()
			return nil, fmt.Errorf("-down %s: %s has no such node; want FARM/NODE", n, name)
		}
	}
	return e, nil
}

// packet has the plane decide about an IP packet.
func (e *engine) packet(at time.Time, ip []byte) {
	if at.Sub(e.stepped) >= time.Second || at.Before(e.stepped) {
		e.plane.Step(at)
		e.stepped = at
	}
	// What is said comes from the code that forwards, before it does.
	why := e.plane.Explain(ip)
	e.counts.Packets++
	frame := e.buf[dataplane.ReadOffset:]
	n := 0
	if e.frames {
		n = copy(frame, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9})
		kind := uint16(0x0800)
		if ip[0]>>4 == 6 {
			kind = 0x86dd
		}
		binary.BigEndian.PutUint16(frame[n:], kind)
		n += 2
	}
	n += copy(frame[n:], ip)
	var verdict [1]dataplane.Verdict
	out := e.plane.Process(at, [][]byte{e.buf}, []int{n}, dataplane.ReadOffset, verdict[:])
	switch verdict[0] {
	case dataplane.Forwarded:
		e.counts.Forwarded++
	case dataplane.Passed:
		e.counts.Passed++
	case dataplane.Answered:
		e.counts.Answered++
	case dataplane.Held:
		e.counts.Held++
	default:
		e.counts.Dropped++
	}
	e.note(at, len(ip), verdict[0], &why)
	if e.out == nil {
		return
	}
	for _, b := range out {
		if e.err == nil {
			e.err = e.out.Write(at, 0, b[dataplane.Headroom:], comment(verdict[0], &why))
			e.counts.Written++
		}
	}
}

// comment is what the output says of a packet.
func comment(v dataplane.Verdict, why *dataplane.Explanation) string {
	parts := []string{v.String()}
	if why.Service != "" {
		parts = append(parts, why.Service)
	}
	if why.Node != "" {
		parts = append(parts, "node "+why.Node)
	}
	for _, s := range why.Steps {
		parts = append(parts, s.Stage+": "+s.Text)
	}
	return strings.Join(parts, "; ")
}

// note adds a packet to its flow.
func (e *engine) note(at time.Time, octets int, v dataplane.Verdict, why *dataplane.Explanation) {
	key := why.Flow
	if v == dataplane.Passed {
		// An answer in the capture, of a flow that is balanced.
		if f := e.flows[key.Reverse()]; f != nil {
			f.Answers++
		}
		return
	}
	if why.Backwards {
		if f := e.flows[why.Out.Reverse()]; f != nil {
			f.Answers++
		}
		return
	}
	f := e.flows[key]
	if f == nil {
		if len(e.flows) >= maxFlows || !key.Src().IsValid() {
			e.counts.Unlisted++
			return
		}
		f = &flow{Protocol: protocol(key.Protocol()), Client: key.Src(), VIP: key.Dst(), First: at, key: key, Fate: v.String()}
		e.flows[key] = f
		e.order = append(e.order, f)
	}
	f.Packets++
	f.Octets += uint64(octets) //nolint:gosec // a packet's length
	f.Last = at
	if f.Service == "" {
		f.Service = why.Service
	}
	if f.Node == "" && v == dataplane.Forwarded {
		f.Node, f.Fate = why.Node, v.String()
	}
	if v == dataplane.Dropped {
		if f.Lost++; f.Node == "" && f.Lost == 1 {
			f.Fate = why.Reason.String()
		}
	}
}

func (e *engine) close() {
	e.counts.Drops = map[string]uint64{}
	for r, n := range e.plane.Drops() {
		if n > 0 {
			e.counts.Drops[r.String()] = n
		}
	}
	e.plane.Close()
}

func protocol(n uint8) string {
	switch n {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 58:
		return "icmpv6"
	case 132:
		return "sctp"
	}
	return strconv.Itoa(int(n))
}

// replay gives every packet of a capture to the engines.
func replay(capture io.Reader, engines []*engine, progress func(packets uint64)) (skipped uint64, err error) {
	d, err := pcapdev.Open(capture, nil)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	bufs, sizes := make([][]byte, d.BatchSize()), make([]int, d.BatchSize())
	for i := range bufs {
		bufs[i] = make([]byte, dataplane.Headroom+1<<16+64)
	}
	var packets, notIP uint64
	for {
		n, err := d.Read(bufs, sizes, dataplane.Headroom)
		times := d.Times()
		for i := range n {
			b := bufs[i][dataplane.Headroom:][:sizes[i]]
			if d.Ethernet() {
				b = payload(b)
			}
			packets++
			if b = trim(b); len(b) == 0 || b[0]>>4 != 4 && b[0]>>4 != 6 {
				notIP++
				continue
			}
			for _, e := range engines {
				e.packet(times[i], b)
			}
		}
		progress(packets)
		if err != nil {
			for _, e := range engines {
				e.counts.NotIP = notIP
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return d.Stats().Skipped, err
		}
	}
}

// payload is the IP packet of an Ethernet frame, behind any VLAN tags; nil if it has none.
func payload(frame []byte) []byte {
	const tags = 4
	for at := 12; at+2 <= len(frame) && at <= 12+4*tags; at += 4 {
		switch binary.BigEndian.Uint16(frame[at:]) {
		case 0x8100, 0x88a8, 0x9100:
			continue
		case 0x0800, 0x86dd:
			return frame[at+2:]
		}
		return nil
	}
	return nil
}

// trim takes the padding of a short frame away.
func trim(b []byte) []byte {
	n := len(b)
	switch {
	case n >= 20 && b[0]>>4 == 4:
		n = int(binary.BigEndian.Uint16(b[2:]))
	case n >= 40 && b[0]>>4 == 6:
		if p := int(binary.BigEndian.Uint16(b[4:])); p > 0 { // 0 is a jumbogram
			n = 40 + p
		}
	}
	if n < 20 { // whatever it is, the plane judges it whole
		return b
	}
	return b[:min(n, len(b))]
}
