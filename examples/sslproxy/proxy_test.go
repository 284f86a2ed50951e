package main

import (
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	proxyproto "github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/require"
)

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// issue returns a certificate for a name, and writes it to NAME.crt and NAME.key of dir.
func (a *authority) issue(t testing.TB, dir, name string, serial int64) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".crt"), certPEM, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".key"), keyPEM, 0o600))
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	return pair
}

// rig is a proxy before a server, without a balancer between them.
type rig struct {
	*proxy
	ca   *authority
	dir  string
	addr string
	asks atomic.Int64 // requests that reached the server
}

func newRig(t *testing.T, change func(*config), h http.HandlerFunc) *rig {
	r := &rig{ca: newAuthority(t), dir: t.TempDir()}
	r.ca.issue(t, r.dir, "a.example", 10)
	r.ca.issue(t, r.dir, "b.example", 20)
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.asks.Add(1)
		h(w, req)
	}))
	cfg := config{certs: r.dir, compress: true, cacheBytes: 1 << 20, log: slog.New(slog.DiscardHandler), dial: new(net.Dialer).DialContext}
	if change != nil {
		change(&cfg)
	}
	if cfg.sendPROXY {
		backend.Listener = &proxyproto.Listener{Listener: backend.Listener, ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			return proxyproto.REQUIRE, nil
		}, ValidateHeader: func(h *proxyproto.Header) error {
			if h.Version != 2 {
				return fmt.Errorf("version %d", h.Version)
			}
			return nil
		}}
	}
	backend.Start()
	t.Cleanup(backend.Close)
	cfg.upstream = netip.MustParseAddrPort(backend.Listener.Addr().String())
	require.NoError(t, cfg.validate())
	p, err := newProxy(cfg)
	require.NoError(t, err)
	r.proxy = p
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.serve(ctx, ln)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// client is one that knows the authority, with a certificate or without.
func (r *rig) client(t *testing.T, certs ...tls.Certificate) *http.Client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, r.addr)
		},
		TLSClientConfig:    &tls.Config{RootCAs: r.ca.pool(), Certificates: certs},
		ForceAttemptHTTP2:  true,
		DisableCompression: true,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// answer is a response whose body has been read.
type answer struct {
	Header     http.Header
	ProtoMajor int
	TLS        *tls.ConnectionState
}

func get(t *testing.T, c *http.Client, url string, header ...string) (answer, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return answer{res.Header, res.ProtoMajor, res.TLS}, string(b)
}

func TestCertificatesByNameAndReload(t *testing.T) {
	r := newRig(t, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	serial := func(name string) int64 {
		res, body := get(t, r.client(t), "https://"+name+"/")
		require.Equal(t, "hello", body)
		require.Equal(t, 2, res.ProtoMajor)
		return res.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	require.EqualValues(t, 10, serial("a.example"))
	require.EqualValues(t, 20, serial("b.example"))
	r.ca.issue(t, r.dir, "b.example", 21)
	require.EqualValues(t, 20, serial("b.example"), "not yet")
	require.NoError(t, r.certs.reload())
	require.EqualValues(t, 21, serial("b.example"))
	// A broken file changes nothing.
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "b.example.key"), []byte("no key"), 0o600))
	require.Error(t, r.certs.reload())
	require.EqualValues(t, 21, serial("b.example"))
}

func TestClientCertificates(t *testing.T) {
	ca := newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, ca.pem, 0o600))
	show := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s|%d|%s", r.Header.Get(headerSubject), len(r.Header.Get(headerFingerprint)), r.Header.Get("X-Forwarded-For"))
	}
	r := newRig(t, func(c *config) { c.clientCA = file }, show)
	_, body := get(t, r.client(t, ca.issue(t, t.TempDir(), "alice", 5)), "https://a.example/", headerSubject, "CN=root")
	require.Equal(t, "CN=alice|64|127.0.0.1", body)
	_, body = get(t, r.client(t), "https://a.example/", headerSubject, "CN=root", "X-Forwarded-For", "192.0.2.1")
	require.Equal(t, "|0|127.0.0.1", body, "what clients say of themselves is not passed on")
	_, err := r.client(t, newAuthority(t).issue(t, t.TempDir(), "mallory", 5)).Get("https://a.example/") //nolint:bodyclose // there is none
	require.Error(t, err)
	// Nor to servers for which - and _ are one.
	careless := newRig(t, func(c *config) { c.clientCA = file }, func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			if plain := strings.ToUpper(strings.ReplaceAll(name, "_", "-")); strings.HasPrefix(plain, "X-CLIENT-CERT") || plain == "X-FORWARDED-FOR" {
				fmt.Fprintln(w, plain, values)
			}
		}
	})
	_, body = get(t, careless.client(t), "https://a.example/", "X_Client-Cert_Subject", "CN=root", "x_client_cert_sha256", "00", "X_Forwarded_For", "192.0.2.1", "X_Other", "1")
	require.Equal(t, "X-FORWARDED-FOR [127.0.0.1]\n", body)

	r = newRig(t, func(c *config) { c.clientCA, c.requireClient = file, true }, show)
	_, err = r.client(t).Get("https://a.example/") //nolint:bodyclose // there is none
	require.Error(t, err)

	// Other authorities are in force by a reload.
	other := newAuthority(t)
	alice, bob := ca.issue(t, t.TempDir(), "alice", 5), other.issue(t, t.TempDir(), "bob", 6)
	_, body = get(t, r.client(t, alice), "https://a.example/")
	require.Equal(t, "CN=alice|64|127.0.0.1", body)
	require.NoError(t, os.WriteFile(file, other.pem, 0o600))
	require.NoError(t, r.certs.reload())
	_, body = get(t, r.client(t, bob), "https://a.example/")
	require.Equal(t, "CN=bob|64|127.0.0.1", body)
	_, err = r.client(t, alice).Get("https://a.example/") //nolint:bodyclose // there is none
	require.Error(t, err)
	require.NoError(t, os.WriteFile(file, []byte("nothing"), 0o600))
	require.ErrorContains(t, r.certs.reload(), "no certificates in it")
	_, body = get(t, r.client(t, bob), "https://a.example/")
	require.Equal(t, "CN=bob|64|127.0.0.1", body, "they stay as they were")
}

func TestCompression(t *testing.T) {
	text := strings.Repeat("what is said often is said shortly. ", 1000)
	r := newRig(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, text)
	})
	c := r.client(t)
	res, body := get(t, c, "https://a.example/", "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", res.Header.Get("Content-Encoding"))
	require.Less(t, len(body), len(text)/10)
	z, err := gzip.NewReader(strings.NewReader(body))
	require.NoError(t, err)
	got, err := io.ReadAll(z)
	require.NoError(t, err)
	require.Equal(t, text, string(got))

	res, body = get(t, c, "https://a.example/", "Accept-Encoding", "gzip, zstd")
	require.Equal(t, "zstd", res.Header.Get("Content-Encoding"))
	d, err := zstd.NewReader(strings.NewReader(body))
	require.NoError(t, err)
	defer d.Close()
	got, err = io.ReadAll(d)
	require.NoError(t, err)
	require.Equal(t, text, string(got))

	res, body = get(t, c, "https://a.example/")
	require.Empty(t, res.Header.Get("Content-Encoding"))
	require.Equal(t, text, body)
}

func TestCache(t *testing.T) {
	ca := newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, ca.pem, 0o600))
	r := newRig(t, func(c *config) { c.clientCA = file }, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/kept":
			w.Header().Set("Cache-Control", "public, max-age=60")
		case "/vary":
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "X-Kind")
		case "/private":
			w.Header().Set("Cache-Control", "private, max-age=60")
		case "/cookie":
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Set-Cookie", "a=b")
		case "/none":
			w.Header().Set("Cache-Control", "no-store")
		case "/large":
			w.Header().Set("Cache-Control", "max-age=60")
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		}
		fmt.Fprintf(w, "%s %s", req.Host, req.Header.Get("X-Kind"))
	})
	c := r.client(t)
	asked := func(path string, header ...string) int64 {
		before := r.asks.Load()
		get(t, c, "https://a.example"+path, header...)
		return r.asks.Load() - before
	}
	require.EqualValues(t, 1, asked("/kept"))
	require.EqualValues(t, 0, asked("/kept"))
	res, body := get(t, c, "https://a.example/kept")
	require.NotEmpty(t, res.Header.Get("Age"))
	require.Equal(t, "a.example ", body)
	_, body = get(t, c, "https://b.example/kept")
	require.Equal(t, "b.example ", body, "another site")
	require.EqualValues(t, 1, asked("/kept", "Cache-Control", "no-cache"))
	require.EqualValues(t, 1, asked("/vary", "X-Kind", "1"))
	require.EqualValues(t, 1, asked("/vary", "X-Kind", "2"))
	require.EqualValues(t, 0, asked("/vary", "X-Kind", "2"))
	require.EqualValues(t, 0, asked("/vary", "X-Kind", "1"))
	for _, path := range []string{"/private", "/cookie", "/none", "/large", "/"} {
		require.EqualValues(t, 1, asked(path), path)
		require.EqualValues(t, 1, asked(path), path)
	}
	res2, err := c.Post("https://a.example/kept", "text/plain", strings.NewReader("changed"))
	require.NoError(t, err)
	res2.Body.Close()
	require.EqualValues(t, 1, asked("/kept"), "what was changed is asked for anew")
	c = r.client(t, ca.issue(t, t.TempDir(), "alice", 5))
	require.EqualValues(t, 1, asked("/kept"), "who is known may get something else")
	require.LessOrEqual(t, r.cache.bytes, 1<<20)
}

// What is stale is asked for under a condition, and kept if it has not changed.
func TestCacheRevalidates(t *testing.T) {
	var version atomic.Int64
	var whole, unchanged atomic.Int64
	r := newRig(t, nil, func(w http.ResponseWriter, req *http.Request) {
		h, v := w.Header(), version.Load()
		tag, date := fmt.Sprintf(`"%d"`, v), time.Unix(1_700_000_000+v, 0).UTC().Format(http.TimeFormat)
		same := false
		switch req.URL.Path {
		case "/tag":
			h.Set("ETag", tag)
			same = req.Header.Get("If-None-Match") == tag
		case "/date":
			h.Set("Last-Modified", date)
			same = req.Header.Get("If-Modified-Since") == date
		case "/vary":
			h.Set("ETag", tag)
			h.Set("Vary", "X-Kind")
			same = req.Header.Get("If-None-Match") == tag
		case "/cookie":
			h.Set("ETag", tag)
			if same = req.Header.Get("If-None-Match") == tag; same {
				h.Set("Set-Cookie", "a=b")
			}
		}
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Version", fmt.Sprint(v, unchanged.Load()))
		if same {
			unchanged.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		whole.Add(1)
		fmt.Fprintf(w, "version %d %s", v, req.Header.Get("X-Kind"))
	})
	c := r.client(t)
	for _, path := range []string{"/tag", "/date", "/vary"} {
		version.Store(0)
		whole.Store(0)
		unchanged.Store(0)
		for i := range 4 {
			res, body := get(t, c, "https://a.example"+path, "X-Kind", "1")
			require.Equal(t, "version 0 1", body)
			require.Equal(t, fmt.Sprint(0, max(i-1, 0)), res.Header.Get("X-Version"), "what the server says now")
		}
		require.EqualValues(t, 1, whole.Load(), path)
		require.EqualValues(t, 3, unchanged.Load(), path)
		version.Store(1)
		_, body := get(t, c, "https://a.example"+path, "X-Kind", "1")
		require.Equal(t, "version 1 1", body)
		if path == "/vary" {
			_, body = get(t, c, "https://a.example"+path, "X-Kind", "2")
			require.Equal(t, "version 1 2", body)
			_, body = get(t, c, "https://a.example"+path, "X-Kind", "1")
			require.Equal(t, "version 1 1", body)
		}
	}
	require.EqualValues(t, 10, r.cache.renewed)
	// A cookie for one client is not kept for others.
	get(t, c, "https://a.example/cookie")
	res, _ := get(t, c, "https://a.example/cookie")
	require.NotEmpty(t, res.Header.Get("Set-Cookie"))
	before := whole.Load()
	res, _ = get(t, c, "https://a.example/cookie")
	require.Empty(t, res.Header.Get("Set-Cookie"))
	require.Equal(t, before+1, whole.Load())
}

func TestPROXYProtocol(t *testing.T) {
	r := newRig(t, func(c *config) { c.sendPROXY = true }, func(w http.ResponseWriter, req *http.Request) { fmt.Fprint(w, req.RemoteAddr) })
	tr := r.client(t).Transport.(*http.Transport)
	var local string
	dial := tr.DialContext
	tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			local = conn.LocalAddr().String()
		}
		return conn, err
	}
	_, body := get(t, &http.Client{Transport: tr, Timeout: 30 * time.Second}, "https://a.example/")
	require.Equal(t, local, body, "the server sees the client's address")
}

func TestCommand(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	newAuthority(t).issue(t, dir, "a.example", 1)
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-h"}, 0, "client --TLS--> VIP:443"},
		{[]string{"-to", "nowhere"}, 2, `-to "nowhere": want an address and port`},
		{[]string{"-to", "nowhere"}, 2, "-certs: missing"},
		{[]string{"-certs", dir}, 2, "-to: missing"},
		{[]string{"-no-such-flag"}, 2, "no-such-flag"},
		{[]string{"-listen", "x", "-to", "127.0.0.1:1", "-certs", dir}, 2, `-listen "x": want an address and port`},
		{[]string{"-to", "[::1]:1", "-certs", dir}, 2, "is of the other address family"},
		{[]string{"-to", "127.0.0.1:1", "-certs", dir, "now"}, 2, `"now": want no arguments`},
		{[]string{"-to", "127.0.0.1:1", "-certs", dir, "-cache", "-1"}, 2, "-cache"},
		{[]string{"-to", "127.0.0.1:1", "-certs", dir, "-require-client"}, 2, "-require-client: needs -client-ca"},
		{[]string{"-to", "127.0.0.1:1", "-certs", empty, "-check"}, 1, "no NAME.crt"},
		{[]string{"-to", "127.0.0.1:1", "-certs", dir, "-client-ca", "/no/such", "-check"}, 1, "/no/such"},
		{[]string{"-to", "127.0.0.1:1", "-certs", dir, "-check"}, 0, "right: 1 certificates"},
		{[]string{"-to", "192.0.2.1:1", "-certs", dir, "-listen", "192.0.2.1:1"}, 1, "192.0.2.1:1"},
	} {
		var b strings.Builder
		require.Equal(t, c.status, command(context.Background(), c.args, &b), c.args)
		require.Contains(t, b.String(), c.want)
	}
}
