package main

import (
	"net/netip"
	"strings"

	"github.com/lbprim/lbprim/examples/internal/conf"
)

const defaultSocket = "/run/l4lb/admin.sock"

// admin is how the balancer is watched and steered while it runs.
type admin struct {
	Socket      string         `yaml:"socket" doc:"Unix socket of the admin interface, for its owner only; none for no socket." default:"/run/l4lb/admin.sock"`
	Listen      netip.AddrPort `yaml:"listen" doc:"Address and port to listen on as well, with TLS. It needs certificate, key and token-file."`
	Certificate string         `yaml:"certificate" doc:"File with the certificate chain, in PEM."`
	Key         string         `yaml:"key" doc:"File with its private key, in PEM."`
	TokenFile   string         `yaml:"token-file" doc:"File with the token that callers must show: at least 16 characters, one line."`
	Names       []string       `yaml:"names" doc:"Host names by which the interface is called over TCP, besides its addresses and localhost."`
}

func (a admin) socket() string {
	switch a.Socket {
	case "":
		return defaultSocket
	case "none":
		return ""
	}
	return a.Socket
}

func (a admin) validate(f *conf.File) {
	if s := a.socket(); s != "" && (!strings.HasPrefix(s, "/") || len(s) > 100) {
		f.Add("admin.socket", "%q: want an absolute path of up to 100 characters, or none", s)
	}
	secrets := []struct{ name, value string }{{"certificate", a.Certificate}, {"key", a.Key}, {"token-file", a.TokenFile}}
	if !a.Listen.IsValid() {
		for _, x := range secrets {
			if x.value != "" && !f.Faulty("admin.listen") {
				f.Add("admin."+x.name, "want admin.listen too: the Unix socket needs none")
			}
		}
		return
	}
	for _, x := range secrets {
		if x.value == "" && !f.Faulty("admin."+x.name) {
			f.Add("admin."+x.name, "missing: over TCP the interface needs TLS and a token")
		}
	}
}
