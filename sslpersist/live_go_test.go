package sslpersist_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/sslpersist"
)

// goServer is a server of crypto/tls that greets whoever comes, so that a client reads its
// tickets, too.
func goServer(t *testing.T, cfg *tls.Config) (addr string) {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	require.NoError(t, err)
	testenv.Accept(t, ln, func(c net.Conn) {
		_, _ = io.WriteString(c, "hello")
	})
	return ln.Addr().String()
}

func goConfigs(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	certPEM, keyPEM, _, _ := makeCert(t)
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(certPEM))
	return &tls.Config{Certificates: []tls.Certificate{cert}},
		&tls.Config{RootCAs: pool, ServerName: "test", ClientSessionCache: tls.NewLRUClientSessionCache(10)}
}

func goConnect(t *testing.T, addr string, cfg *tls.Config) tls.ConnectionState {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second}
	c, err := tls.DialWithDialer(&d, "tcp", addr, cfg)
	require.NoError(t, err)
	defer c.Close()
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b))
	return c.ConnectionState()
}

// Go marks its tickets with nothing that tells the key, so nothing is learned, and its
// IDs are random: the client's address is what is left.
func TestGoClientsAndServers(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			serverCfg, clientCfg := goConfigs(t)
			clientCfg.MaxVersion = version
			// One certificate, two servers with ticket keys of their own.
			a, b := goServer(t, serverCfg.Clone()), goServer(t, serverCfg.Clone())
			bed := newBed(t, &sslpersist.Settings[string]{Tickets: true, ClientAddr: true}, a, b)
			require.False(t, goConnect(t, bed.addr, clientCfg).DidResume)
			for range 10 {
				require.True(t, goConnect(t, bed.addr, clientCfg).DidResume)
			}
			s := bed.farm.Stats()
			require.Zero(t, s.IDs.Entries)
			require.Zero(t, s.Keys.Entries)
			require.Equal(t, uint64(1), s.ByMetric)
			require.Equal(t, uint64(10), s.ByAddr)
			require.Zero(t, s.NotTLS+s.Malformed+s.TooLarge+s.NoReply)
		})
	}
}

// tapped follows a connection of crypto/tls with a Handshake.
type tapped struct {
	net.Conn
	h     *sslpersist.Handshake
	first int // bytes of the first flight
	hello *sslpersist.ClientHello
	name  string
}

func (c *tapped) Write(b []byte) (int, error) {
	if c.first == 0 {
		c.first = len(b)
	}
	h, err := c.h.Client(b)
	if err == nil && c.hello == nil {
		c.hello, c.name = &h, string(h.ServerName)
	}
	return c.Conn.Write(b)
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	_, _ = c.h.Server(b[:n])
	return n, err
}

func TestHandshakeOfCryptoTLS(t *testing.T) {
	cases := map[string]func(server, client *tls.Config){
		"TLS 1.0": func(s, c *tls.Config) {
			s.MinVersion, c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS10, tls.VersionTLS10
		},
		"TLS 1.2": func(_, c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
		"TLS 1.3": func(_, c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.X25519} },
		"TLS 1.3 with a post-quantum key share": func(_, c *tls.Config) {
			c.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768, tls.X25519}
		},
		"TLS 1.3 with a HelloRetryRequest": func(s, c *tls.Config) {
			c.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP384}
			s.CurvePreferences = []tls.CurveID{tls.CurveP384}
		},
	}
	for name, set := range cases {
		t.Run(name, func(t *testing.T) {
			serverCfg, clientCfg := goConfigs(t)
			set(serverCfg, clientCfg)
			addr := goServer(t, serverCfg)
			for i := range 3 {
				raw, err := net.DialTimeout("tcp", addr, 10*time.Second)
				require.NoError(t, err)
				tap := &tapped{Conn: raw, h: new(sslpersist.Handshake)}
				c := tls.Client(tap, clientCfg)
				_, err = io.ReadAll(c)
				require.NoError(t, err)
				state := c.ConnectionState()
				c.Close()

				require.NotNil(t, tap.hello)
				require.Equal(t, "test", tap.name)
				require.Equal(t, state.DidResume, tap.h.Resumed())
				require.Equal(t, i > 0, state.DidResume)
				require.True(t, tap.h.Done())
				var kinds []sslpersist.LessonKind
				for l, ok := tap.h.Next(); ok; l, ok = tap.h.Next() {
					kinds = append(kinds, l.Kind)
					require.NotEqual(t, sslpersist.LearnID, l.Kind, "Go issues no IDs")
				}
				switch {
				case state.Version == tls.VersionTLS13 && state.DidResume:
					require.Equal(t, []sslpersist.LessonKind{sslpersist.LearnKey}, kinds)
				case state.Version == tls.VersionTLS13:
					require.Empty(t, kinds)
				case state.DidResume:
					require.Equal(t, sslpersist.RefreshID, kinds[0])
				default:
					require.Equal(t, []sslpersist.LessonKind{sslpersist.LearnKey, sslpersist.Finished}, kinds)
				}
				if name == "TLS 1.3 with a post-quantum key share" {
					require.Greater(t, tap.first, 1400)
				}
				require.Equal(t, state.Version == tls.VersionTLS13, tap.hello.Version.IsTLS13())
			}
		})
	}
}
