package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
)

// TLSDialer is a [Dialer] that makes a TLS handshake on each connection, so that any
// prober over TCP can run inside TLS: IMAP on port 993, LDAP on 636. The zero
// TLSDialer works and checks no certificate. It is a plain value, safe for concurrent
// use.
type TLSDialer struct {
	Dialer Dialer      // nil: the system's choices
	Config *tls.Config // see [TLS.Config]
}

// DialContext connects to address, the text of a [netip.AddrPort], and makes the
// handshake. The only network is "tcp".
func (d TLSDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("probe: TLSDialer: network: got %q, want tcp", network)
	}
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("probe: TLSDialer: address: %w", err)
	}
	raw, err := dial(ctx, d.Dialer, network, target, true)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, clientConfig(d.Config, target))
	if err := conn.HandshakeContext(ctx); err != nil {
		reset(raw)
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return conn, nil
}
