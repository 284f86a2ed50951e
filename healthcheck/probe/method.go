package probe

import "github.com/lbprim/lbprim/healthcheck"

// For returns the zero prober for a method, and false for [healthcheck.NoMethod] and
// unknown ones. Those for RADIUS, TFTP and Command lack a field; TCP is
// [TCPHalfOpen].
func For(m healthcheck.Method) (healthcheck.Prober, bool) {
	switch m {
	case healthcheck.ICMP:
		return ICMP{}, true
	case healthcheck.TCP:
		return TCPHalfOpen{}, true
	case healthcheck.UDP:
		return UDP{}, true
	case healthcheck.FTP:
		return FTP{}, true
	case healthcheck.SMTP:
		return SMTP{}, true
	case healthcheck.NNTP:
		return NNTP{}, true
	case healthcheck.POP3:
		return POP3{}, true
	case healthcheck.IMAP4:
		return IMAP{}, true
	case healthcheck.TELNET:
		return Telnet{}, true
	case healthcheck.HTTP:
		return HTTP{}, true
	case healthcheck.SSL:
		return TLSHello{}, true
	case healthcheck.SSLComplete:
		return TLS{}, true
	case healthcheck.LDAP:
		return LDAP{}, true
	case healthcheck.RTSP:
		return RTSP{}, true
	case healthcheck.MMS:
		return MMS{}, true
	case healthcheck.PNM:
		return PNM{}, true
	case healthcheck.DNS:
		return DNS{}, true
	case healthcheck.RADIUS:
		return RADIUS{}, true
	case healthcheck.TFTP:
		return TFTP{}, true
	case healthcheck.GRPC:
		return GRPC{}, true
	case healthcheck.Redis:
		return Redis{}, true
	case healthcheck.MySQL:
		return MySQL{}, true
	case healthcheck.PostgreSQL:
		return Postgres{}, true
	case healthcheck.Script:
		return Script{}, true
	case healthcheck.Command:
		return Command{}, true
	case healthcheck.Agent:
		return Agent{}, true
	}
	return nil, false
}
