package sslpersist_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/sslpersist"
)

// makeCert writes a certificate and its key, and returns both as PEM and as files.
func makeCert(t *testing.T) (certPEM, keyPEM []byte, cert, key string) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"test"},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(priv)
	require.NoError(t, err)
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, certPEM, 0o600))
	require.NoError(t, os.WriteFile(key, keyPEM, 0o600))
	return certPEM, keyPEM, cert, key
}

// openssl runs OpenSSL without the distribution's minimum of TLS 1.2.
type openssl struct {
	t    *testing.T
	path string
}

func needOpenSSL(t *testing.T) openssl {
	return openssl{t, testenv.NeedServers(t, "openssl")[0]}
}

const oldCiphers = "DEFAULT@SECLEVEL=0"

// server is one s_server with a key of its own.
type server struct {
	addr string
	stop func()
}

// server starts an s_server on addr (port 0: any) and waits until it accepts.
func (o openssl) server(addr string, args ...string) *server {
	t := o.t
	t.Helper()
	_, _, cert, key := makeCert(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // not before the test ends, however busy the machine is
	cmd := exec.CommandContext(ctx, o.path, append([]string{"s_server", "-accept", addr, "-cert", cert, "-key", key, "-cipher", oldCiphers}, args...)...)
	cmd.Env = append(os.Environ(), "OPENSSL_CONF=/dev/null")
	if slices.Contains(args, "-early_data") {
		// It serves no pages then, but talks to its standard input until that ends.
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		t.Cleanup(func() { in.Close() })
	} else {
		cmd.Args = append(cmd.Args, "-www")
	}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	done := make(chan struct{})
	accept := make(chan string, 1)
	go func() {
		defer close(done)
		s := bufio.NewScanner(out)
		for s.Scan() {
			// With a port of the caller's choice it does not say which.
			if a, ok := strings.CutPrefix(s.Text(), "ACCEPT"); ok {
				if a = strings.TrimSpace(a); a == "" {
					a = addr
				}
				select {
				case accept <- a:
				default:
				}
			}
		}
	}()
	s := &server{stop: sync.OnceFunc(func() {
		cancel()
		<-done
		_ = cmd.Wait()
	})}
	t.Cleanup(s.stop)
	select {
	case s.addr = <-accept:
	case <-done:
		t.Fatalf("openssl s_server %v ended at once", args)
	}
	return s
}

// untilThere is a standard input that ends once a file is there.
type untilThere struct {
	ctx  context.Context
	name string
}

func (u untilThere) Read([]byte) (int, error) {
	for u.ctx.Err() == nil {
		if st, err := os.Stat(u.name); err == nil && st.Size() > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0, io.EOF
}

var outcome = regexp.MustCompile(`(?m)^(New|Reused), (\S+),`)

// client runs an s_client that asks for a page, and returns for each of its connections
// "New" or "Reused" with the version.
func (o openssl) client(addr string, args ...string) (got []string, output string) {
	t := o.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.path, append([]string{"s_client", "-connect", addr, "-servername", "test", "-cipher", oldCiphers}, args...)...)
	cmd.Env = append(os.Environ(), "OPENSSL_CONF=/dev/null")
	cmd.Stdin = strings.NewReader("GET / HTTP/1.0\r\n\r\n")
	if i := slices.Index(args, "-sess_out"); i >= 0 && !slices.Contains(args, "-ign_eof") {
		cmd.Stdin = untilThere{ctx, args[i+1]}
	}
	b, _ := cmd.CombinedOutput() // its exit code does not tell
	page := strings.Index(string(b), "HTTP/1.0 200")
	if page < 0 {
		page = len(b)
	}
	for _, m := range outcome.FindAllStringSubmatch(string(b[:page]), -1) {
		got = append(got, m[1]+" "+m[2])
	}
	return got, string(b)
}

// bed is a proxy in front of servers, with a clock that can be put forward.
type bed struct {
	*proxy
	addr  string
	ahead atomic.Int64

	mu   sync.Mutex
	went []string // "server basis" of each connection
}

func newBed(t *testing.T, set *sslpersist.Settings[string], servers ...string) *bed {
	t.Helper()
	farm, err := sslpersist.NewFarm(set)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	b := &bed{addr: ln.Addr().String()}
	b.proxy = &proxy{
		farm: farm, servers: servers,
		now: func() time.Time { return time.Now().Add(time.Duration(b.ahead.Load())) },
		placed: func(server string, by sslpersist.Basis) {
			b.mu.Lock()
			b.went = append(b.went, server+" "+by.String())
			b.mu.Unlock()
		},
	}
	go b.serve(ln)
	return b
}

// places returns where connections went since the last call.
func (b *bed) places() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.went
	b.went = nil
	return w
}

// Right answer 8, and what issue and cases ask beside it: two servers with different keys,
// every reconnect resumes, from another address too, after nine minutes too, and after a
// server was away.
func TestReconnectsResumeAtTheirServer(t *testing.T) {
	t.Parallel()
	o := needOpenSSL(t)
	for _, version := range []string{"-tls1", "-tls1_1", "-tls1_2"} {
		t.Run(version, func(t *testing.T) {
			o := openssl{t, o.path}
			a, b := o.server("127.0.0.1:0", "-no_ticket"), o.server("127.0.0.1:0", "-no_ticket")
			bed := newBed(t, nil, a.addr, b.addr)
			got, out := o.client(bed.addr, version, "-no_ticket", "-reconnect")
			require.Len(t, got, 6, out)
			for i, g := range got {
				want := "Reused"
				if i == 0 {
					want = "New"
				}
				require.Equal(t, want, strings.Fields(g)[0], out)
			}
			went := bed.places()
			require.Len(t, went, 6)
			home, _, _ := strings.Cut(went[0], " ")
			for _, w := range went[1:] {
				require.Equal(t, home+" session ID", w)
			}
		})
	}
}

func TestSessionFollowsTheClient(t *testing.T) {
	o := needOpenSSL(t)
	a, b := o.server("127.0.0.1:0", "-no_ticket"), o.server("127.0.0.1:0", "-no_ticket")
	bed := newBed(t, nil, a.addr, b.addr)
	file := filepath.Join(t.TempDir(), "session")
	connect := func(want string, args ...string) (node, by string) {
		t.Helper()
		got, out := o.client(bed.addr, append([]string{"-tls1_2", "-no_ticket"}, args...)...)
		require.NotEmpty(t, got, out)
		require.Equal(t, want, strings.Fields(got[0])[0], out)
		went := bed.places()
		require.Len(t, went, 1)
		node, by, _ = strings.Cut(went[0], " ")
		return node, by
	}
	home, by := connect("New", "-sess_out", file)
	require.Equal(t, "metric", by)
	resumes := func(args ...string) {
		t.Helper()
		node, by := connect("Reused", append([]string{"-sess_in", file}, args...)...)
		require.Equal(t, home, node)
		require.Equal(t, "session ID", by)
	}
	for range 3 {
		resumes() // the metric would have alternated
	}
	resumes("-bind", "127.0.0.77")
	resumes("-bind", "127.1.2.3")
	for range 3 {
		bed.ahead.Add(int64(9 * time.Minute))
		resumes()
	}
	// Idle for too long for the balancer, not for the server: the metric places it; where it
	// is resumed or begun anew is bound.
	bed.ahead.Add(int64(10*time.Minute + 2*time.Second))
	got, out := o.client(bed.addr, "-tls1_2", "-no_ticket", "-sess_in", file, "-sess_out", file)
	require.NotEmpty(t, got, out)
	went := bed.places()
	require.Contains(t, went[0], "metric")
	home, _, _ = strings.Cut(went[0], " ")
	resumes()

	// Its server restarts and has lost its sessions: a new session there, bound there.
	home1 := a
	if home == b.addr {
		home1 = b
	}
	home1.stop()
	o.server(home, "-no_ticket")
	node, by := connect("New", "-sess_in", file, "-sess_out", file)
	require.Equal(t, home, node)
	require.Equal(t, "session ID", by)
	for range 3 {
		resumes()
	}

	// Its server is down: rebound to the other one, and stays there when it returns.
	bed.down.Store(home, true)
	node, by = connect("New", "-sess_in", file, "-sess_out", file)
	require.NotEqual(t, home, node)
	require.Equal(t, "metric", by)
	bed.down.Delete(home)
	home = node
	for range 3 {
		resumes()
	}
	require.Equal(t, uint64(1), bed.farm.Stats().Rebound)
}

// A server that does not answer is noticed by the proxy itself.
func TestServerThatIsGoneIsRebound(t *testing.T) {
	o := needOpenSSL(t)
	a, b := o.server("127.0.0.1:0", "-no_ticket"), o.server("127.0.0.1:0", "-no_ticket")
	bed := newBed(t, nil, a.addr, b.addr)
	file := filepath.Join(t.TempDir(), "session")
	args := []string{"-tls1_2", "-no_ticket", "-sess_out", file}
	got, out := o.client(bed.addr, args...)
	require.NotEmpty(t, got, out)
	home, _, _ := strings.Cut(bed.places()[0], " ")
	if home == a.addr {
		a.stop()
	} else {
		b.stop()
	}
	args = append(args, "-sess_in", file)
	got, out = o.client(bed.addr, args...)
	require.NotEmpty(t, got, out)
	require.Contains(t, got[0], "New")
	for range 3 {
		got, out = o.client(bed.addr, args...)
		require.NotEmpty(t, got, out)
		require.Contains(t, got[0], "Reused", out)
	}
}

// Tickets of two servers with different keys, TLS 1.2 and 1.3: once the key names are
// known, every client with a ticket of a server goes there.
func TestTicketsGoToTheServerOfTheirKey(t *testing.T) {
	t.Parallel()
	o := needOpenSSL(t)
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		t.Run(version, func(t *testing.T) {
			o := openssl{t, o.path}
			a, b := o.server("127.0.0.1:0"), o.server("127.0.0.1:0")
			bed := newBed(t, &sslpersist.Settings[string]{Tickets: true}, a.addr, b.addr)
			dir := t.TempDir()
			// New sessions and resumptions until both key names are known.
			for i := 0; bed.farm.Keys().Len() < 2; i++ {
				require.Less(t, i, 40, "key names not learned")
				f := filepath.Join(dir, "s")
				got, out := o.client(bed.addr, version, "-ign_eof", "-sess_out", f)
				require.NotEmpty(t, got, out)
				if i%2 == 1 {
					_, _ = o.client(bed.addr, version, "-ign_eof") // so that the next one goes where this did
				}
				_, _ = o.client(bed.addr, version, "-ign_eof", "-sess_in", f)
				if i%4 == 3 {
					_, _ = o.client(bed.addr, version, "-ign_eof") // and to the other server at times
				}
			}
			bed.places()
			for i := range 4 {
				f := filepath.Join(dir, "t")
				got, out := o.client(bed.addr, version, "-ign_eof", "-sess_out", f)
				require.NotEmpty(t, got, out)
				require.Contains(t, got[0], "New")
				home, _, _ := strings.Cut(bed.places()[0], " ")
				for range 2 {
					got, out = o.client(bed.addr, version, "-ign_eof", "-sess_in", f, "-bind", "127.0.0.9")
					require.NotEmpty(t, got, out)
					require.Contains(t, got[0], "Reused", "round %d\n%s", i, out)
					require.Equal(t, []string{home + " ticket"}, bed.places())
				}
			}
			if version == "-tls1_3" {
				require.Zero(t, bed.farm.IDs().Len())
			}
		})
	}
}

// TLS 1.3 with 0-RTT data offered, and with an external pre-shared key.
func TestEarlyDataAndPSK(t *testing.T) {
	o := needOpenSSL(t)
	a := o.server("127.0.0.1:0", "-early_data", "-psk", "c0ffee", "-psk_identity", "a name longer than sixteen bytes")
	bed := newBed(t, &sslpersist.Settings[string]{Tickets: true}, a.addr)
	dir := t.TempDir()
	file, early := filepath.Join(dir, "s"), filepath.Join(dir, "early")
	require.NoError(t, os.WriteFile(early, []byte("early"), 0o600))
	got, out := o.client(bed.addr, "-tls1_3", "-sess_out", file)
	require.NotEmpty(t, got, out)
	got, out = o.client(bed.addr, "-tls1_3", "-sess_in", file, "-early_data", early)
	require.NotEmpty(t, got, out)
	require.Contains(t, got[0], "Reused")
	require.Contains(t, out, "Early data was accepted")
	require.Equal(t, 1, bed.farm.Keys().Waiting(), "an accepted ticket")

	for range 2 {
		got, out = o.client(bed.addr, "-tls1_3", "-psk", "c0ffee", "-psk_identity", "a name longer than sixteen bytes")
		require.NotEmpty(t, got, out)
	}
	require.Zero(t, bed.farm.Keys().Len(), "one identity is not two tickets")
	require.Zero(t, bed.farm.IDs().Len())
	s := bed.farm.Stats()
	require.Zero(t, s.NotTLS+s.Malformed+s.TooLarge+s.NoReply)
}
