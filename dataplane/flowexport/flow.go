package flowexport

import (
	"fmt"
	"net/netip"
	"time"
)

// EndReason says why a flow is reported. The values are those of flowEndReason (IANA IPFIX element 136).
type EndReason uint8

const (
	IdleTimeout   EndReason = iota + 1 // no packet for the inactive timeout
	ActiveTimeout                      // the flow goes on; what happened since the last report
	EndOfFlow                          // FIN or RST
	ForcedEnd                          // the exporter shuts down, or the session was removed
	LackOfRoom                         // evicted from a full table
)

var endReasons = [...]string{IdleTimeout: "idle", ActiveTimeout: "active", EndOfFlow: "end", ForcedEnd: "forced", LackOfRoom: "evicted"}

func (r EndReason) String() string {
	if int(r) < len(endReasons) && endReasons[r] != "" {
		return endReasons[r]
	}
	return fmt.Sprintf("EndReason(%d)", uint8(r))
}

// Flow is one direction of a session. Addresses of a record must be of one family; 4-in-6 addresses count as IPv4.
type Flow struct {
	Src, Dst           netip.AddrPort // as the packets came
	NATSrc, NATDst     netip.AddrPort // as they went on, where translated; zero where not
	Protocol           uint8          // IANA protocol number
	TOS                uint8          // traffic class
	TCPFlags           uint8          // all flags seen, or-ed
	InPort, OutPort    uint32         // interface indexes, 0 where unknown
	Octets, Packets    uint64         // since the last report of this flow; IP headers included
	Start, End         time.Time      // of the first and the last packet since the last report
	Reason             EndReason      // why it is reported now
	Policy             string         // the rule that matched; at most 255 bytes are sent, less where MaxMessage is small, 32 by NetFlow
	Node               string         // the node's name, sent only with Config.EnterpriseNumber
	ICMPType, ICMPCode uint8          // of ICMP and ICMPv6
}

// Due says whether a flow is to be reported at now: since its last packet inactive time has passed, or since its last report
// active time. Zero timeouts never are due.
func Due(now, lastPacket, lastReport time.Time, active, inactive time.Duration) (EndReason, bool) {
	switch {
	case inactive > 0 && now.Sub(lastPacket) >= inactive:
		return IdleTimeout, true
	case active > 0 && now.Sub(lastReport) >= active:
		return ActiveTimeout, true
	}
	return 0, false
}

// Sampler chooses one flow in n by its hash, so that both directions and all reports of a flow are chosen alike when their
// hashes are equal. The zero Sampler chooses all.
type Sampler struct{ n uint64 }

// NewSampler returns a Sampler of one in n; n below 2 chooses all.
func NewSampler(n uint32) Sampler { return Sampler{uint64(n)} }

// Sampled reports whether the flow of that hash is chosen.
func (s Sampler) Sampled(hash uint64) bool {
	if s.n < 2 {
		return true
	}
	// The high bits of a product choose evenly whatever n is.
	hash *= 0x9e3779b97f4a7c15
	return (hash>>32)*s.n>>32 == 0
}
