package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/lbprim/lbprim/examples/internal/lab"
)

// page is what servers send: n bytes which a client can compute itself and compare.
func page(n, salt int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + salt)
	}
	return b
}

const largestPage = 96 << 10

// answer is the web servers' handler: GET /n/salt gives a page, under the server's name.
func answer(name string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{n}/{salt}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.PathValue("n"))
		salt, err2 := strconv.Atoi(r.PathValue("salt"))
		if err != nil || err2 != nil || n < 0 || n > largestPage {
			http.Error(w, "want /bytes/salt", http.StatusBadRequest)
			return
		}
		w.Header().Set("X-Server", name)
		_, _ = w.Write(page(n, salt))
	})
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// process is a server program on a host, which can be killed and started again.
type process struct {
	name    string
	host    lab.Host
	at      []netip.AddrPort
	handler http.Handler // nil: UDP echo
	tls     *tls.Config  // nil: plain HTTP

	mu   sync.Mutex
	stop []func()
}

// start opens its sockets.
func (p *process) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.at {
		var stop func()
		var err error
		if p.handler == nil {
			stop, err = p.echo(ctx, at)
		} else {
			stop, err = p.serve(ctx, at)
		}
		if err != nil {
			return err
		}
		p.stop = append(p.stop, stop)
	}
	return nil
}

// kill is what the kernel does for a program that dies: nobody listens any more, and all
// its connections are reset.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, stop := range p.stop {
		stop()
	}
	p.stop = nil
}

func (p *process) serve(ctx context.Context, at netip.AddrPort) (stop func(), err error) {
	l, err := p.host.Listen(ctx, at)
	if err != nil {
		return nil, err
	}
	open := &connections{Listener: l, open: map[net.Conn]bool{}}
	srv := &http.Server{
		Handler: p.handler, TLSConfig: p.tls.Clone(), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: log.New(io.Discard, "", 0), // health checks that only connect look like errors
	}
	go func() {
		if p.tls != nil {
			_ = srv.ServeTLS(open, "", "")
		} else {
			_ = srv.Serve(open)
		}
	}()
	return func() {
		l.Close()
		open.abort()
		_ = srv.Close()
	}, nil
}

// connections remembers what it has accepted.
type connections struct {
	net.Listener
	mu   sync.Mutex
	open map[net.Conn]bool
	dead bool
}

func (l *connections) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		abort(c)
		return nil, net.ErrClosed
	}
	l.open[c] = true
	return &remembered{c, l}, nil
}

func (l *connections) abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	for c := range l.open {
		abort(c)
	}
	clear(l.open)
}

type remembered struct {
	net.Conn
	of *connections
}

func (c *remembered) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// abort resets a connection.
func abort(c net.Conn) {
	switch c := c.(type) {
	case *net.TCPConn:
		_ = c.SetLinger(0)
		c.Close()
	case interface{ Abort() error }:
		_ = c.Abort()
	default:
		c.Close()
	}
}

func (p *process) echo(ctx context.Context, at netip.AddrPort) (stop func(), err error) {
	c, err := p.host.ListenPacket(ctx, at)
	if err != nil {
		return nil, err
	}
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo(append([]byte(p.name+" "), b[:n]...), from)
			}
		}
	}()
	return func() { c.Close() }, nil
}

const shopName = "shop.example"

// certificate makes the shop's certificate, and the configuration by which a client
// trusts this one and no other.
func certificate() (server, client *tls.Config, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: shopName}, DNSNames: []string{shopName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	server = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	return server, &tls.Config{RootCAs: roots, ServerName: shopName}, nil
}
