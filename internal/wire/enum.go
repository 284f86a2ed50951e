package wire

// IP protocol numbers.
const (
	ProtoHopByHop = 0
	ProtoICMP     = 1
	ProtoIPv4     = 4
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoIPv6     = 41
	ProtoDCCP     = 33
	ProtoRouting  = 43
	ProtoFragment = 44
	ProtoGRE      = 47
	ProtoAH       = 51
	ProtoICMPv6   = 58
	ProtoNoNext   = 59
	ProtoDestOpts = 60
	ProtoSCTP     = 132
	ProtoUDPLite  = 136
)

// TCP flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// ICMP and ICMPv6 types.
const (
	ICMPEchoReply    = 0
	ICMPUnreachable  = 3
	ICMPSourceQuench = 4
	ICMPRedirect     = 5
	ICMPEcho         = 8
	ICMPTimeExceeded = 11
	ICMPParamProblem = 12

	ICMPv6Unreachable  = 1
	ICMPv6TooBig       = 2
	ICMPv6TimeExceeded = 3
	ICMPv6ParamProblem = 4
	ICMPv6Echo         = 128
	ICMPv6EchoReply    = 129
)

// ICMP codes.
const (
	CodeFragNeeded = 4 // of ICMPUnreachable
)

// Status is the verdict of a parser.
type Status uint8

// The verdicts. Only after OK may a View be used.
const (
	OK           Status = iota
	Short               // cut before the end of its headers, or before its own length
	BadVersion          // neither IPv4 nor IPv6
	BadHeader           // IPv4 header length below 20
	BadLength           // a length field contradicts another
	BadExt              // IPv6 extension headers too many, misplaced or beyond the packet
	BadTransport        // transport header cut or contradictory
	BadFragment         // fragment with an impossible offset or length
	TinyFragment        // first fragment without the whole header chain up to the ports and flags
)

var statusText = [...]string{"ok", "short packet", "bad version", "bad header length", "bad length", "bad extension header", "bad transport header", "bad fragment", "tiny first fragment"}

// String returns what is wrong in a few words.
func (s Status) String() string {
	if int(s) < len(statusText) {
		return statusText[s]
	}
	return "unknown"
}
