package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
	proxyproto "github.com/pires/go-proxyproto"
)

// config says what the proxy does.
type config struct {
	certs, clientCA string
	requireClient   bool
	cacheBytes      int
	compress        bool
	sendPROXY       bool

	upstream netip.AddrPort
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	log      *slog.Logger
}

func (c *config) validate() (err error) {
	if c.certs == "" {
		err = errors.Join(err, errors.New("-certs: missing, want a directory"))
	}
	if c.requireClient && c.clientCA == "" {
		err = errors.Join(err, errors.New("-require-client: needs -client-ca"))
	}
	if c.cacheBytes < 0 {
		err = errors.Join(err, errors.New("-cache: negative, want bytes, or 0 for none"))
	}
	return err
}

// Headers that tell servers who the client is, by its certificate. What clients send under these names is removed.
const (
	headerSubject     = "X-Client-Cert-Subject"
	headerFingerprint = "X-Client-Cert-Sha256"
)

// proxy ends TLS and asks the balancer.
type proxy struct {
	certs  *certs
	server *http.Server
	cache  *cache // or nil
	log    *slog.Logger

	transport *http.Transport
}

func newProxy(cfg config) (*proxy, error) {
	certs, err := newCerts(cfg.certs, cfg.clientCA, cfg.requireClient)
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{DialContext: cfg.dialUpstream, DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second,
		// A connection that says who the client is serves no other client.
		DisableKeepAlives: cfg.sendPROXY}
	p := &proxy{certs: certs, transport: tr, log: cfg.log}
	var rt http.RoundTripper = tr
	if cfg.cacheBytes > 0 {
		p.cache = newCache(tr, cfg.cacheBytes)
		rt = p.cache
	}
	var h http.Handler = &httputil.ReverseProxy{
		Transport: rt,
		ErrorLog:  slog.NewLogLogger(cfg.log.Handler(), slog.LevelWarn),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", cfg.upstream.String()
			r.SetXForwarded()
			identify(r.Out.Header, r.In.TLS)
			if cfg.compress {
				r.Out.Header.Del("Accept-Encoding") // one form is cached, and compressed here
			}
		},
	}
	if cfg.compress {
		wrap, err := gzhttp.NewWrapper(gzhttp.EnableZstd(true), gzhttp.SuffixETag("-z"))
		if err != nil {
			return nil, err
		}
		h = wrap(h)
	}
	inner := h
	h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r.WithContext(withClient(r.Context(), r.RemoteAddr)))
	})
	p.server = &http.Server{Handler: h, TLSConfig: certs.tlsConfig(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(cfg.log.Handler(), slog.LevelDebug)}
	return p, nil
}

// serve serves until ctx is done.
func (p *proxy) serve(ctx context.Context, ln net.Listener) error {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		p.log.Info("ending: what is asked for is answered first")
		limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if p.server.Shutdown(limit) != nil {
			p.server.Close()
		}
	})
	err := p.server.ServeTLS(ln, "", "")
	if !stop() {
		<-ended // what is under way
	}
	return err
}

// identify passes on what is known of the client from its certificate, and nothing that it says itself, also not to servers that read fields
// through environment variables, where - is _ (RFC 3875, section 4.1.18).
func identify(h http.Header, t *tls.ConnectionState) {
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		plain := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		return plain == headerSubject || plain == headerFingerprint || plain != name && strings.HasPrefix(plain, "X-Forwarded-")
	})
	if t == nil || len(t.VerifiedChains) == 0 {
		return
	}
	leaf := t.PeerCertificates[0]
	sum := sha256.Sum256(leaf.Raw)
	h.Set(headerSubject, leaf.Subject.String())
	h.Set(headerFingerprint, hex.EncodeToString(sum[:]))
}

type clientKey struct{}

func withClient(ctx context.Context, addr string) context.Context {
	return context.WithValue(ctx, clientKey{}, addr)
}

// dialUpstream connects to the balancer, and says for whom if that is wanted.
func (c *config) dialUpstream(ctx context.Context, network, _ string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, c.upstream.String())
	if err != nil || !c.sendPROXY {
		return conn, err
	}
	addr, _ := ctx.Value(clientKey{}).(string)
	client, err := netip.ParseAddrPort(addr)
	if err == nil {
		// The transport dials in the context of the request that needs the connection.
		h := proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(client), net.TCPAddrFromAddrPort(c.upstream))
		_, err = h.WriteTo(conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
