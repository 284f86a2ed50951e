package healthcheck

import "github.com/lbprim/lbprim/internal/enum"

// Method is a way to check a port. Package probe has a prober for each. The zero
// Method, [NoMethod], checks nothing.
type Method uint8

const (
	NoMethod    Method = iota // no check
	ICMP                      // an echo reply
	TCP                       // a handshake, or half of one
	UDP                       // no refusal, or an answer
	FTP                       // RFC 959
	SMTP                      // RFC 5321
	NNTP                      // RFC 3977
	POP3                      // RFC 1939
	IMAP4                     // RFC 3501
	TELNET                    // RFC 854
	HTTP                      // a status, or content
	SSL                       // ClientHello answered by anything in TLS
	SSLComplete               // full handshake, then HTTP inside
	LDAP                      // a bind (RFC 4511)
	RTSP                      // OPTIONS (RFC 2326, RFC 7826)
	MMS                       // Microsoft Media Server
	PNM                       // Progressive Networks (RealMedia)
	DNS                       // a query (RFC 1035)
	RADIUS                    // an Access-Request (RFC 2865)
	TFTP                      // a read request (RFC 1350)
	GRPC                      // grpc.health.v1
	Redis                     // PING
	MySQL                     // the server's greeting, or a login
	PostgreSQL                // a startup message
	Script                    // texts sent and expected
	Command                   // a program and its exit status
	Agent                     // what an agent says

	numMethods = int(Agent) + 1
)

var methodNames = enum.Of[Method]("healthcheck: method", "none", "icmp", "tcp", "udp", "ftp", "smtp", "nntp", "pop3", "imap4", "telnet", "http", "ssl", "ssl-complete",
	"ldap", "rtsp", "mms", "pnm", "dns", "radius", "tftp", "grpc", "redis", "mysql", "postgresql", "script", "command", "agent")

// Layer returns 3, 4 or 7; 0 for NoMethod.
func (m Method) Layer() int {
	switch {
	case m == NoMethod || int(m) >= numMethods:
		return 0
	case m == ICMP:
		return 3
	case m == TCP || m == UDP:
		return 4
	}
	return 7
}

// Transport returns what the method runs over; AnyTransport if it does not care.
func (m Method) Transport() Transport {
	switch m {
	case NoMethod, ICMP, Command:
		return AnyTransport
	case UDP, DNS, RADIUS, TFTP:
		return OverUDP
	}
	return OverTCP
}

// String returns the name of m.
func (m Method) String() string { return methodNames.String(m) }

// AppendText implements [encoding.TextAppender].
func (m Method) AppendText(b []byte) ([]byte, error) { return methodNames.Append(b, m) }

// MarshalText implements [encoding.TextMarshaler].
func (m Method) MarshalText() ([]byte, error) { return m.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *Method) UnmarshalText(text []byte) error { return methodNames.Parse(m, text) }

// Transport is TCP or UDP. The zero Transport is [AnyTransport].
type Transport uint8

const (
	// AnyTransport: not declared.
	AnyTransport Transport = iota
	OverTCP
	OverUDP
)

var transportNames = enum.Of[Transport]("healthcheck: transport", "any", "tcp", "udp")

// String returns the name of t.
func (t Transport) String() string { return transportNames.String(t) }

// AppendText implements [encoding.TextAppender].
func (t Transport) AppendText(b []byte) ([]byte, error) { return transportNames.Append(b, t) }

// MarshalText implements [encoding.TextMarshaler].
func (t Transport) MarshalText() ([]byte, error) { return t.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Transport) UnmarshalText(text []byte) error { return transportNames.Parse(t, text) }
