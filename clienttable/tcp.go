package clienttable

import "github.com/lbprim/lbprim/internal/enum"

// Dir is the direction of a packet of a session.
type Dir uint8

// Directions.
const (
	FromClient Dir = iota
	FromServer
)

// String returns "client" or "server": who sends.
func (d Dir) String() string { return dirNames.String(d) }

// AppendText implements encoding.TextAppender.
func (d Dir) AppendText(b []byte) ([]byte, error) { return dirNames.Append(b, d) }

// MarshalText implements encoding.TextMarshaler.
func (d Dir) MarshalText() ([]byte, error) { return d.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Dir) UnmarshalText(text []byte) error { return dirNames.Parse(d, text) }

var dirNames = enum.Of[Dir]("clienttable: direction", "client", "server")

// The flags of a TCP header that matter here (RFC 9293, section 3.1).
const (
	TCPFin = 1 << 0
	TCPSyn = 1 << 1
	TCPRst = 1 << 2
	TCPAck = 1 << 4
)

// TCPPhase is where a TCP session is, as seen from between its ends.
type TCPPhase uint8

// Phases of a TCP session.
const (
	// TCPNone: no packet has been seen.
	TCPNone TCPPhase = iota
	// TCPSynSent: the client has sent a SYN.
	TCPSynSent
	// TCPSynReceived: the server has answered it.
	TCPSynReceived
	// TCPEstablished: the client has acknowledged that.
	TCPEstablished
	// TCPFinClient: the client has sent a FIN, the server has not: half-closed.
	TCPFinClient
	// TCPFinServer: the other way round.
	TCPFinServer
	// TCPClosing: both have sent a FIN, and not both are acknowledged.
	TCPClosing
	// TCPClosed: both FINs are acknowledged. Where only packets from the client are
	// seen: the client has sent a FIN.
	TCPClosed
	// TCPReset: one of them has sent an RST that fits.
	TCPReset
)

var tcpPhaseNames = enum.Of[TCPPhase]("clienttable: TCP phase", "none", "syn-sent", "syn-received", "established", "fin-client", "fin-server", "closing", "closed", "reset")

// String returns the name of p.
func (p TCPPhase) String() string { return tcpPhaseNames.String(p) }

// AppendText implements encoding.TextAppender.
func (p TCPPhase) AppendText(b []byte) ([]byte, error) { return tcpPhaseNames.Append(b, p) }

// MarshalText implements encoding.TextMarshaler.
func (p TCPPhase) MarshalText() ([]byte, error) { return p.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *TCPPhase) UnmarshalText(text []byte) error { return tcpPhaseNames.Parse(p, text) }

// TCPEvent is what a packet means for a session. Whatever it is, the packet is to be
// forwarded: the ends know best.
type TCPEvent uint8

// Events.
const (
	// TCPSame: nothing has changed that others need to know.
	TCPSame TCPEvent = iota
	// TCPStarted: the first packet of a session, usually a SYN, unless it means more.
	TCPStarted
	// TCPOpened: the handshake is complete, and perhaps the client's side closed at once.
	TCPOpened
	// TCPHalfClosed: one side has sent its FIN.
	TCPHalfClosed
	// TCPEnded: both FINs are acknowledged, or an RST fits.
	TCPEnded
	// TCPRestarted: a SYN began another session after the end of this one, or in
	// its place. After an end its server may be selected anew.
	TCPRestarted
	// TCPIgnored: an RST that does not fit. It ends nothing.
	TCPIgnored
)

var tcpEventNames = enum.Of[TCPEvent]("clienttable: TCP event", "same", "started", "opened", "half-closed", "ended", "restarted", "ignored")

// String returns the name of e.
func (e TCPEvent) String() string { return tcpEventNames.String(e) }

// AppendText implements encoding.TextAppender.
func (e TCPEvent) AppendText(b []byte) ([]byte, error) { return tcpEventNames.Append(b, e) }

// MarshalText implements encoding.TextMarshaler.
func (e TCPEvent) MarshalText() ([]byte, error) { return e.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *TCPEvent) UnmarshalText(text []byte) error { return tcpEventNames.Parse(e, text) }
