package dataplane

import (
	"net/netip"

	"github.com/lbprim/lbprim/steering/path"
)

// markOf returns what the path rules and QoS rows say of a packet, besides its way: its DSCP, and whether its flow is to be exported. fromNode says that
// it belongs to an optimised connection.
func (w *Worker) markOf(pk *packet, fromNode bool) (d path.Decision) {
	if w.snap.inline == nil {
		return d
	}
	e := w.p.inter.conf.Paths
	if e == nil || !e.Marks() {
		return d
	}
	v := &pk.v
	q := path.Packet{
		Src: netip.AddrPortFrom(addrOf(v.Src(pk.ip)), v.SrcPort), Dst: netip.AddrPortFrom(addrOf(v.Dst(pk.ip)), v.DstPort), Protocol: v.Proto,
		DSCP: v.TOS(pk.ip) >> 2, Optimized: fromNode,
	}
	if w.link.Ethernet {
		q.VLAN = pk.frame.VLAN
	}
	if w.tr != nil {
		x := e.Explain(&q)
		w.tr.step("mark", "%v", x)
		return x.Decision
	}
	return e.Mark(&q)
}

// setDSCP marks a packet, if there is a DSCP to set. What is known of congestion stays (RFC 3168, section 5).
func (w *Worker) setDSCP(pk *packet, d path.DSCP) {
	value, ok := d.Value()
	if !ok {
		return
	}
	if old := pk.v.TOS(pk.ip); old>>2 != value {
		pk.v.SetTOS(pk.ip, value<<2|old&3)
		w.stats.marked++
	}
}
