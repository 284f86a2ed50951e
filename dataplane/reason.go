package dataplane

import (
	"github.com/lbprim/lbprim/internal/enum"
	"github.com/lbprim/lbprim/internal/wire"
)

// Reason says why a packet was dropped. The zero Reason is none: it was not.
type Reason uint8

// The reasons, from the packet's own faults to those of the configuration and the servers.
const (
	NotDropped Reason = iota

	Truncated    // shorter than its headers or its own length say
	BadVersion   // neither IPv4 nor IPv6
	BadHeader    // impossible header length
	BadLength    // length fields contradict each other
	BadExtension // IPv6 extension headers too many, misplaced or cut
	BadTransport // transport header cut or contradictory
	BadFragment  // fragment with an impossible offset or length
	TinyFragment // first fragment without the whole transport header
	BadFrame     // Ethernet header cut, or too many VLAN tags
	BadChecksum  // wrong transport checksum of a packet that would be answered
	BadSource    // to a virtual address, from itself or from what is no address of a host
	ZeroChecksum // UDP over IPv6, or UDP-Lite, without a checksum
	SourceRouted // IPv6 routing header with segments left, or home address: cannot be translated
	Authentic    // authentication header, which covers the addresses: must not be translated
	OddOffload   // partial checksum or segmentation that does not fit the packet

	FragmentLost    // later fragment whose first one was not seen in time
	FragmentOverlap // fragments that overlap
	FragmentsFull   // too many fragments wait

	NoPolicy       // for a virtual address, but no policy matches
	NoNode         // no node of the service may take a new session
	TooFewNodes    // fewer nodes of the service are usable than it needs to answer
	Overload       // every node of the service is at its limit
	TableFull      // the session table is full of established sessions
	NoPort         // no port is left to tell two sessions apart
	NoSession      // belongs to no session, and must not start one
	NodeAlone      // from a node's service address and port, but of no session
	NodeLost       // of a session whose node was lost
	ForeignPacket  // for no virtual address, of no session, and foreign packets are dropped
	NoQuote        // ICMP error whose quoted packet cannot be read
	BadQuote       // ICMP error whose quoted header has a wrong checksum
	Unanswered     // ICMP message for a virtual address that is neither forwarded nor answered
	Draining       // new session while the plane takes no new ones
	NoRoute        // next hop unknown
	TTLExpired     // time to live used up
	TooBig         // larger than the next link takes, and not to be fragmented
	Refused        // by the action of the service
	NotIP          // neither IPv4 nor IPv6, on a device without a host behind it
	WriteFailed    // the device did not take it
	Unproven       // continues a handshake with the balancer that is not complete: its client sends it again
	HoldsFull      // as many connections as may wait for the end of delayed binding
	TooSlow        // the client took too long to send what its node is chosen by
	Discarded      // by an in-path rule
	ForeignTunnel  // in a tunnel to the balancer, from who is no node
	UnknownChannel // from a node, with a key that no channel of this balancer has
	numReasons
)

var reasonNames = enum.Of[Reason]("dataplane: reason", "not-dropped",
	"truncated", "bad-version", "bad-header", "bad-length", "bad-extension", "bad-transport", "bad-fragment", "tiny-fragment", "bad-frame",
	"bad-checksum", "bad-source", "zero-checksum", "source-routed", "authentic", "odd-offload",
	"fragment-lost", "fragment-overlap", "fragments-full",
	"no-policy", "no-node", "too-few-nodes", "overload", "table-full", "no-port", "no-session", "node-alone", "node-lost", "foreign", "no-quote", "bad-quote", "unanswered",
	"draining", "no-route", "ttl-expired", "too-big", "refused", "not-ip", "write-failed", "unproven", "holds-full", "too-slow",
	"discarded", "foreign-tunnel", "unknown-channel")

// String returns the name of r.
func (r Reason) String() string { return reasonNames.String(r) }

// AppendText implements encoding.TextAppender.
func (r Reason) AppendText(b []byte) ([]byte, error) { return reasonNames.Append(b, r) }

// MarshalText implements encoding.TextMarshaler.
func (r Reason) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Reason) UnmarshalText(text []byte) error { return reasonNames.Parse(r, text) }

// parseReason translates what the parser says.
var parseReason = [...]Reason{
	wire.OK: NotDropped, wire.Short: Truncated, wire.BadVersion: BadVersion, wire.BadHeader: BadHeader, wire.BadLength: BadLength,
	wire.BadExt: BadExtension, wire.BadTransport: BadTransport, wire.BadFragment: BadFragment, wire.TinyFragment: TinyFragment,
}

// Verdict is what became of a packet. The zero Verdict is Dropped.
type Verdict uint8

const (
	// Dropped packets go nowhere; a [Reason] is counted.
	Dropped Verdict = iota
	// Forwarded packets belong to a session and go to its other side.
	Forwarded
	// Passed packets are no business of the Plane's and go on as they came.
	Passed
	// Answered packets were answered by the Plane itself: by a reset, an echo reply or an
	// ICMP error.
	Answered
	// Held packets wait for another one, as fragments do that came before the first, or were for the Plane itself.
	Held
)

var verdictNames = enum.Of[Verdict]("dataplane: verdict", "dropped", "forwarded", "passed", "answered", "held")

// String returns the name of v.
func (v Verdict) String() string { return verdictNames.String(v) }

// AppendText implements encoding.TextAppender.
func (v Verdict) AppendText(b []byte) ([]byte, error) { return verdictNames.Append(b, v) }

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) { return v.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *Verdict) UnmarshalText(text []byte) error { return verdictNames.Parse(v, text) }
