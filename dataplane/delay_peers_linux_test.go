//go:build linux

package dataplane_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// start runs a program in a namespace until stop is called, or the test ends.
func start(t testing.TB, ns *netns.Namespace, path string, args ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "OPENSSL_CONF=/dev/null")
	cmd.WaitDelay = time.Second
	require.NoError(t, ns.Do(cmd.Start))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// output runs a program in a namespace to its end.
func output(t testing.TB, ns *netns.Namespace, path string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var b bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "OPENSSL_CONF=/dev/null")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &b, &b, time.Second
	require.NoError(t, ns.Do(cmd.Start))
	_ = cmd.Wait() // what it printed tells
	return b.String()
}

// certificate returns a certificate of its own, and its files.
func certificate(t testing.TB) (c tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	certFile, keyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(certFile, certPEM, 0o600))
	require.NoError(t, os.WriteFile(keyFile, keyPEM, 0o600))
	c, err = tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	return c, certFile, keyFile
}

// reach waits until a server answers at its own address.
func (w *world) reach(t testing.TB, i int, v6 bool, port uint16) {
	t.Helper()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c, err := w.servers[i].DialContext(ctx, "tcp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String())
		if err == nil {
			c.Close()
		}
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
}

// sslServer starts an openssl s_server on host i.
func (w *world) sslServer(t testing.TB, i int, v6 bool, port uint16, args ...string) (stop func()) {
	t.Helper()
	openssl := testenv.NeedServers(t, "openssl")[0]
	_, cert, key := certificate(t)
	stop = start(t, w.servers[i], openssl, append([]string{"s_server", "-accept", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String(),
		"-cert", cert, "-key", key, "-www", "-quiet"}, args...)...)
	w.reach(t, i, v6, port)
	return stop
}

// persist puts TLS persistence in force.
func (w *world) persist(t testing.TB, port uint16, set sslpersist.Settings[steering.NodeID]) *sslpersist.Farm[steering.NodeID] {
	set.Ports = []uint16{port}
	farm, err := sslpersist.NewFarm(&set)
	require.NoError(t, err)
	w.delay(t, func(s *dataplane.Service, _ bool) {
		s.Delay.Read, s.Delay.Sessions = dataplane.ReadTLS, farm
	})
	return farm
}

// With tickets or IDs, every client comes back to the server that knows its session.
func TestTLSSessionIDsReachTheirServer(t *testing.T) {
	openssl := testenv.NeedServers(t, "openssl")[0]
	w := newWorld(t, how{})
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			const port = 4430
			farm := w.persist(t, port, sslpersist.Settings[steering.NodeID]{})
			stops := []func(){w.sslServer(t, 0, v6, port, "-no_ticket", "-tls1_2"), w.sslServer(t, 1, v6, port, "-no_ticket", "-tls1_2")}
			vip := netip.AddrPortFrom(wvip(v6), port).String()
			session := filepath.Join(t.TempDir(), "session")
			for range 4 {
				out := output(t, w.client, openssl, "s_client", "-connect", vip, "-no_ticket", "-reconnect", "-tls1_2")
				require.Equal(t, 1, strings.Count(out, "New, TLSv1.2"), out)
				require.Equal(t, 5, strings.Count(out, "Reused, TLSv1.2"), out)
			}
			require.Equal(t, 4, farm.IDs().Len())

			// The client comes from another address.
			get := func(args ...string) string {
				return output(t, w.client, openssl, append([]string{"s_client", "-connect", vip, "-no_ticket", "-tls1_2"}, args...)...)
			}
			get("-sess_out", session)
			prefix := 24
			other := netip.MustParseAddr("10.70.0.3")
			if v6 {
				prefix, other = 64, netip.MustParseAddr("fd70::3")
			}
			output(t, w.client, "ip", "addr", "add", fmt.Sprintf("%v/%d", other, prefix), "dev", "eth0", "nodad")
			for range 4 {
				require.Contains(t, get("-sess_in", session, "-bind", netip.AddrPortFrom(other, 0).String()), "Reused, TLSv1.2")
			}
			// Its server is gone: another one serves it, and the next connections find that one.
			for i := range stops {
				stops[i]()
				require.Contains(t, get("-sess_in", session, "-sess_out", session), "TLSv1.2", "server %d is down", i)
				require.Contains(t, get("-sess_in", session), "Reused, TLSv1.2")
				stops[i] = w.sslServer(t, i, v6, port, "-no_ticket", "-tls1_2")
			}
		})
	}
}

// handshake connects as Go's client does, and reports whether the session was resumed.
func (w *world) handshake(t testing.TB, addr string, cfg *tls.Config) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	raw, err := w.client.DialContext(ctx, "tcp", addr)
	require.NoError(t, err)
	defer raw.Close()
	c := tls.Client(raw, cfg)
	require.NoError(t, c.HandshakeContext(ctx))
	_, err = fmt.Fprintf(c, "GET / HTTP/1.0\r\n\r\n") // reads the tickets of TLS 1.3, too
	require.NoError(t, err)
	_, _ = io.ReadAll(c)
	return c.ConnectionState().DidResume
}

func TestTLSTicketsReachTheirServer(t *testing.T) {
	w := newWorld(t, how{})
	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			port := 4431 + version - tls.VersionTLS12
			farm := w.persist(t, port, sslpersist.Settings[steering.NodeID]{Tickets: true})
			for i := range 2 {
				w.sslServer(t, i, false, port)
			}
			addr := netip.AddrPortFrom(wvip(false), port).String()
			cfg := &tls.Config{InsecureSkipVerify: true, ServerName: "test", MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
			// A key name is known after two of its tickets. What TLS 1.3 shows of a ticket is that it was accepted, so that a few
			// clients have to be sent back by chance: by a client in between, where servers take turns.
			for range 8 * int(version-tls.VersionTLS12) {
				w.handshake(t, addr, cfg)
				w.handshake(t, addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
			}
			resumed := 0
			for k := 0; k < 60 && resumed < 8; k++ {
				if w.handshake(t, addr, cfg) {
					resumed++
				} else {
					resumed = 0
				}
			}
			require.Equal(t, 8, resumed, "in a row; %+v", farm.Stats())
			require.Zero(t, farm.IDs().Len(), "tickets leave no IDs")
			require.NotZero(t, farm.Stats().ByTicket)
		})
	}
}

// Where nothing else tells, the client's address does, if that is wanted: clients of TLS 1.3 show nothing that would.
func TestTLSClientAddresses(t *testing.T) {
	w := newWorld(t, how{})
	const port = 4436
	farm := w.persist(t, port, sslpersist.Settings[steering.NodeID]{ClientAddr: true})
	for _, v6 := range []bool{false, true} {
		for i := range 2 {
			w.sslServer(t, i, v6, port, "-tls1_3")
		}
		for range 6 {
			w.handshake(t, netip.AddrPortFrom(wvip(v6), port).String(), &tls.Config{InsecureSkipVerify: true})
		}
	}
	st := farm.Stats()
	require.EqualValues(t, 2, st.ByMetric, "%+v", st)
	require.EqualValues(t, 10, st.ByAddr, "%+v", st)
}

// Clients of TLS 1.3 without tickets leave nothing in the table.
func TestTLS13LeavesNoIDs(t *testing.T) {
	w := newWorld(t, how{})
	const port = 4435
	farm := w.persist(t, port, sslpersist.Settings[steering.NodeID]{})
	for i := range 2 {
		w.sslServer(t, i, false, port, "-tls1_3")
	}
	for range 10 {
		w.handshake(t, netip.AddrPortFrom(wvip(false), port).String(), &tls.Config{InsecureSkipVerify: true, ServerName: "test"})
	}
	require.Zero(t, farm.IDs().Len())
	require.EqualValues(t, 10, farm.Stats().ByMetric)
}

// one is a pool of one server.
func (w *world) one(t testing.TB, ids *steering.IDs, i int, v6 bool) *steering.Pool {
	p, err := steering.NewPool(&steering.Config{IDs: ids}, steering.Node{Name: fmt.Sprintf("only%d-%v", i, v6), Addr: netip.AddrPortFrom(waddr(v6, byte(1+i), 2), 0)})
	require.NoError(t, err)
	return p
}

// farms puts rules in force with farms "a" and "b" of one server each.
func (w *world) farms(t testing.TB, read dataplane.Read, cfg *l7.Config, rules ...l7.Rule) {
	t.Helper()
	p, err := l7.Compile(cfg, rules...)
	require.NoError(t, err)
	w.delay(t, func(s *dataplane.Service, v6 bool) {
		s.Delay.Read, s.Delay.Rules, s.Delay.Limits = read, p, w.how.limits
		s.Delay.Farms = map[string]*steering.Pool{"a": w.one(t, w.ids, 0, v6), "b": w.one(t, w.ids, 1, v6)}
	})
}

func farm(name string) l7.Action { return l7.Action{Do: l7.Farm, Farm: name} }

// The server name of the hello chooses the farm, and HTTP/2 over TLS runs through untouched.
func TestServerNamesChooseFarms(t *testing.T) {
	w := newWorld(t, how{})
	w.farms(t, dataplane.ReadTLS, &l7.Config{Default: l7.Action{Do: l7.Drop}},
		l7.Rule{Index: 1, First: l7.Method{Kind: l7.ServerName, Value: "a.example"}, Action: farm("a")},
		l7.Rule{Index: 2, First: l7.Method{Kind: l7.ServerName, Value: "*.b.example"}, Second: l7.Method{Kind: l7.ALPN, Value: "h2"}, Action: farm("b")})
	const port = 4440
	for _, v6 := range []bool{false, true} {
		for i := range 2 {
			ln, err := w.servers[i].Listen(context.Background(), "tcp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String())
			require.NoError(t, err)
			cert, _, _ := certificate(t)
			srv := &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(rw, "server %d %s ", i, r.Proto)
				_, _ = io.Copy(rw, r.Body)
			})}
			t.Cleanup(func() { srv.Close() })
			go func() { _ = srv.ServeTLS(ln, "", "") }()
		}
		get := func(name string) (string, error) {
			tr := &http.Transport{
				DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
					return w.client.DialContext(ctx, network, netip.AddrPortFrom(wvip(v6), port).String())
				},
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: name},
				ForceAttemptHTTP2: true,
			}
			defer tr.CloseIdleConnections()
			var out string
			for range 3 {
				body := strings.Repeat("x", 100000)
				res, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Post("https://"+name+"/", "text/plain", strings.NewReader(body))
				if err != nil {
					return "", err
				}
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil {
					return "", err
				}
				s, ok := strings.CutSuffix(string(b), body)
				if !ok {
					return "", fmt.Errorf("a body of %d bytes came back", len(b))
				}
				out = strings.TrimSpace(s)
			}
			return out, nil
		}
		got, err := get("a.example")
		require.NoError(t, err)
		require.Equal(t, "server 0 HTTP/2.0", got)
		got, err = get("www.b.example")
		require.NoError(t, err)
		require.Equal(t, "server 1 HTTP/2.0", got)
		_, err = get("elsewhere.example")
		require.Error(t, err, "dropped")
	}
}

// nginx starts nginx on host i, which says who it is and what it was asked for. tls are directives of its server, if it is to speak TLS.
func (w *world) nginx(t testing.TB, i int, v6 bool, port uint16, tls ...string) {
	t.Helper()
	ssl := ""
	if len(tls) > 0 {
		_, cert, key := certificate(t)
		ssl = " ssl http2; ssl_certificate " + cert + "; ssl_certificate_key " + key + "; " + strings.Join(tls, "; ")
	}
	path := testenv.NeedServers(t, "nginx")[0]
	dir := t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr crit;
events { worker_connections 256; }
http { access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
 server { listen %[2]s%[4]s; location / { return 200 "server %[3]d $request_uri $connection_requests\n"; } location = /tls { return 200 "%[3]d $server_protocol $ssl_session_reused\n"; } } }
`, dir, netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port), i, ssl)
	require.NoError(t, os.WriteFile(conf, []byte(text), 0o600))
	start(t, w.servers[i], path, "-c", conf, "-e", "stderr", "-p", dir)
	w.reach(t, i, v6, port)
}

// HTTP rules with nginx behind the balancer and curl before it.
func TestHTTPRulesChooseFarms(t *testing.T) {
	curl := testenv.NeedServers(t, "curl")[0]
	w := newWorld(t, how{})
	w.farms(t, dataplane.ReadHTTP, &l7.Config{Default: l7.Action{Do: l7.Reply, Code: 404}},
		l7.Rule{Index: 1, First: l7.Method{Kind: l7.PathPrefix, Value: "/a/"}, Action: farm("a")},
		l7.Rule{Index: 2, First: l7.Method{Kind: l7.Cookie, Key: "site", Value: "b"}, Action: farm("b")},
		l7.Rule{Index: 3, First: l7.Method{Kind: l7.PathExact, Value: "/old"}, Action: l7.Action{Do: l7.Redirect, Location: "/a/new"}})
	const port = 8030
	for _, v6 := range []bool{false, true} {
		for i := range 2 {
			w.nginx(t, i, v6, port)
		}
		base := "http://" + netip.AddrPortFrom(wvip(v6), port).String()
		get := func(args ...string) string {
			return output(t, w.client, curl, append([]string{"-s", "-S", "-m", "30", "-w", "%{http_code}"}, args...)...)
		}
		require.Equal(t, "server 0 /a/x 1\n200", get(base+"/a/x"))
		require.Equal(t, "server 1 /x 1\n200", get("-b", "site=b", base+"/x"))
		require.Equal(t, "404", get(base+"/x"))
		require.Equal(t, "302", get(base+"/old"))
		require.Equal(t, "server 0 /a/new 1\n200", get("-L", base+"/old"))
		// A head of several segments.
		require.Equal(t, "server 1 /x 1\n200", get("-H", "X-Long: "+strings.Repeat("y", 2500), "-b", "site=b", base+"/x"))
	}
}

// nginx that speaks HTTP/2 over TLS behind the balancer: curl comes through by its server name, and openssl back to the nginx that has its session.
func TestNginxOverTLS(t *testing.T) {
	need := testenv.NeedServers(t, "curl", "openssl")
	curl, openssl := need[0], need[1]
	w := newWorld(t, how{})
	const port = 4450
	for _, v6 := range []bool{false, true} {
		for i := range 2 {
			w.nginx(t, i, v6, port, "ssl_protocols TLSv1.2", "ssl_session_tickets off", "ssl_session_cache shared:a:1m")
		}
	}
	w.farms(t, dataplane.ReadTLS, &l7.Config{Default: l7.Action{Do: l7.Drop}},
		l7.Rule{Index: 1, First: l7.Method{Kind: l7.ServerName, Value: "a.example"}, Action: farm("a")},
		l7.Rule{Index: 2, First: l7.Method{Kind: l7.ServerName, Value: "b.example"}, Second: l7.Method{Kind: l7.ALPN, Value: "h2"}, Action: farm("b")})
	for _, v6 := range []bool{false, true} {
		vip := netip.AddrPortFrom(wvip(v6), port).String()
		for name, want := range map[string]string{"a": "0", "b": "1"} {
			host := name + ".example:4450"
			out := output(t, w.client, curl, "-s", "-S", "-k", "-m", "30", "--http2", "--connect-to", host+":"+vip, "https://"+host+"/tls")
			require.Equal(t, want+" HTTP/2.0 .\n", out)
		}
	}
	w.persist(t, port, sslpersist.Settings[steering.NodeID]{})
	for _, v6 := range []bool{false, true} {
		for range 4 {
			out := output(t, w.client, openssl, "s_client", "-connect", netip.AddrPortFrom(wvip(v6), port).String(), "-no_ticket", "-reconnect", "-tls1_2")
			require.Equal(t, 1, strings.Count(out, "New, TLSv1.2"), out)
			require.Equal(t, 5, strings.Count(out, "Reused, TLSv1.2"), out)
		}
	}
}
