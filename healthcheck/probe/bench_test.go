package probe_test

import (
	"net"
	"testing"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// The targets answer in the same process: their work is part of the figures.
func BenchmarkProbe(b *testing.B) {
	for _, host := range loopbacks {
		closing := listen(b, net.JoinHostPort(host, "0"), func(net.Conn) {})
		web := listen(b, net.JoinHostPort(host, "0"), func(c net.Conn) {
			c.Read(make([]byte, 512))
			c.Write([]byte("HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 1000\r\n\r\n"))
			c.Read(make([]byte, 1))
		})
		mail := listen(b, net.JoinHostPort(host, "0"), func(c net.Conn) {
			c.Write([]byte("220 x ESMTP\r\n"))
			c.Read(make([]byte, 512))
			c.Write([]byte("221 bye\r\n"))
			c.Read(make([]byte, 1))
		})
		for _, row := range []struct {
			name   string
			p      healthcheck.Prober
			target interface{ String() string }
		}{
			{"tcp", probe.TCP{}, closing},
			{"half-open", probe.TCPHalfOpen{}, closing},
			{"http", probe.HTTP{}, web},
			{"smtp", probe.SMTP{}, mail},
			{"icmp", probe.ICMP{}, closing},
		} {
			b.Run(row.name+"/"+host, func(b *testing.B) {
				target := mustAddr(row.target.String())
				b.ReportAllocs()
				for b.Loop() {
					if res := row.p.Probe(b.Context(), target); res.Verdict != healthcheck.Pass {
						b.Fatal(res.Err)
					}
				}
			})
		}
	}
}
