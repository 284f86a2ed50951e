package probe

import (
	"crypto/tls"
	"net/netip"
)

// clientConfig returns what a handshake with target is made with: cfg with the target
// as the server's name if it has none, or, without cfg, uncheckedConfig.
func clientConfig(cfg *tls.Config, target netip.AddrPort) *tls.Config {
	if cfg == nil {
		return uncheckedConfig()
	}
	if cfg.ServerName != "" || cfg.InsecureSkipVerify {
		return cfg
	}
	cfg = cfg.Clone()
	cfg.ServerName = target.Addr().Unmap().WithZone("").String()
	return cfg
}

// uncheckedConfig checks no certificate and speaks whatever an old server may speak:
// it asks for life, and nothing secret is sent.
func uncheckedConfig() *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true,
		MinVersion:         tls.VersionTLS10,
		CipherSuites:       allSuites(),
	}
}

func allSuites() []uint16 {
	var ids []uint16
	for _, s := range tls.CipherSuites() {
		ids = append(ids, s.ID)
	}
	for _, s := range tls.InsecureCipherSuites() {
		ids = append(ids, s.ID)
	}
	return ids
}
