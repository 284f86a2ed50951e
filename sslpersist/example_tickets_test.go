package sslpersist_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/lbprim/lbprim/sslpersist"
)

// named has a server write the name of its ticket key in front of its tickets, as OpenSSL, nginx and BoringSSL do and Go does not.
func named(name string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	c.WrapSession = func(cs tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		ticket, err := c.EncryptTicket(cs, s)
		return slices.Concat([]byte(name), ticket), err
	}
	c.UnwrapSession = func(ticket []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
		if len(ticket) < len(name) || string(ticket[:len(name)]) != name {
			return nil, nil // another server's: a full handshake
		}
		return c.DecryptTicket(ticket[len(name):], cs)
	}
	return c
}

// TLS 1.3 shows a ticket only when it is used, and it teaches only if the server takes it. So the client's address brings the first
// connections back; once two tickets of a server were taken, its key name is known, and brings clients back whose address has changed.
func Example_tickets() {
	farm, err := sslpersist.NewFarm(&sslpersist.Settings[string]{Tickets: true, ClientAddr: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	placed := make(chan sslpersist.Basis, 1)
	p := &proxy{farm: farm, now: time.Now, placed: func(_ string, by sslpersist.Basis) { placed <- by }}
	roots := x509.NewCertPool()
	for _, key := range []string{"key of server one", "key of server two"} {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.TLS = named(key[:16])
		s.StartTLS()
		defer s.Close()
		p.servers = append(p.servers, s.Listener.Addr().String())
		roots.AddCert(s.Certificate())
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots, ClientSessionCache: tls.NewLRUClientSessionCache(1)},
	}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	go p.serve(ln)

	for range 5 {
		r, err := client.Get("https://" + ln.Addr().String())
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = r.Body.Close()
		fmt.Printf("placed by %v, resumed: %v\n", <-placed, r.TLS.DidResume)
	}
	fmt.Println(farm.Keys().Len(), "key name")
	// Output:
	// placed by metric, resumed: false
	// placed by client address, resumed: true
	// placed by client address, resumed: true
	// placed by ticket, resumed: true
	// placed by ticket, resumed: true
	// 1 key name
}
