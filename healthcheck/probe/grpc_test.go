package probe_test

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// grpcHealth answers a health call by an HTTP/2 server that knows nothing of gRPC.
// body is the message, status the grpc-status.
func grpcHealth(body, status string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/grpc.health.v1.Health/Check" || r.Header.Get("Te") != "trailers" || r.ProtoMajor != 2 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if strings.HasSuffix(string(req), "unknown") {
			body, status = "", "5"
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		io.WriteString(w, body)
		w.Header().Set("Grpc-Status", status)
		if status != "0" {
			w.Header().Set("Grpc-Message", "so sorry")
		}
	}
}

func h2Server(t testing.TB, host string, cfg *tls.Config, h http.Handler) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skip(err)
	}
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), TLSConfig: cfg, ErrorLog: log.New(io.Discard, "", 0)}
	s.Protocols.SetUnencryptedHTTP2(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetHTTP1(true)
	if cfg != nil {
		go s.ServeTLS(l, "", "")
	} else {
		go s.Serve(l)
	}
	t.Cleanup(func() { s.Close() })
	return netip.MustParseAddrPort(l.Addr().String())
}

const serving = "\x00\x00\x00\x00\x02\x08\x01"

func TestGRPC(t *testing.T) {
	for _, host := range loopbacks {
		for _, row := range []struct {
			name, body, status, service, err string
		}{
			{"serving", serving, "0", "", ""},
			{"service", serving, "0", "web", ""},
			{"other fields", "\x00\x00\x00\x00\x0c\x12\x01x\x08\x01\x18\x80\x01\x25\x00\x00\x00\x00", "0", "", "want one whole"},
			{"skipped fields", "\x00\x00\x00\x00\x0d\x12\x01x\x08\x01\x18\x80\x01\x25\x00\x00\x00\x00", "0", "", ""},
			{"not serving", "\x00\x00\x00\x00\x02\x08\x02", "0", "", `grpc: reply: got "NOT_SERVING", want SERVING`},
			{"unknown by default", "\x00\x00\x00\x00\x00", "0", "", `got "UNKNOWN", want SERVING`},
			{"unknown service", "", "0", "unknown", `got "grpc-status NOT_FOUND so sorry", want OK`},
			{"unimplemented", "", "12", "", "UNIMPLEMENTED"},
			{"cut message", serving[:6], "0", "", "want one whole HealthCheckResponse"},
			{"compressed", "\x01" + serving[1:], "0", "", "want one whole HealthCheckResponse"},
			{"long", strings.Repeat("x", 10000), "0", "", "too long"},
		} {
			t.Run(host+" "+row.name, func(t *testing.T) {
				addr := h2Server(t, host, nil, grpcHealth(row.body, row.status))
				res := probe.GRPC{Service: row.service}.Probe(within(t, patience), addr)
				if row.err == "" {
					require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
				} else {
					require.Equal(t, healthcheck.Fail, res.Verdict)
					require.ErrorContains(t, res.Err, row.err)
				}
			})
		}
	}
	t.Run("no gRPC there", func(t *testing.T) {
		addr := h2Server(t, "127.0.0.1", nil, http.NotFoundHandler())
		res := probe.GRPC{}.Probe(within(t, patience), addr)
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorContains(t, res.Err, "HTTP status 404")
	})
	t.Run("HTTP/1 only", func(t *testing.T) {
		addr := listen(t, "127.0.0.1:0", func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			io.Copy(io.Discard, c)
		})
		res := probe.GRPC{}.Probe(within(t, patience), addr)
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorContains(t, res.Err, "HTTP/1.1 header")
	})
	t.Run("TLS", func(t *testing.T) {
		cert, pool := certificate(t, time.Now().Add(72*time.Hour+time.Minute))
		addr := h2Server(t, "127.0.0.1", &tls.Config{Certificates: []tls.Certificate{cert}}, grpcHealth(serving, "0"))
		res := probe.GRPC{Secure: true, TLS: &tls.Config{RootCAs: pool}}.Probe(within(t, patience), addr)
		require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		require.Equal(t, "certificate expires in 3 days", res.Note)
		res = probe.GRPC{Secure: true, TLS: &tls.Config{}}.Probe(within(t, patience), addr)
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorContains(t, res.Err, "grpc: handshake: ")
	})
}

func TestGRPCFrames(t *testing.T) {
	zero := with(func(p *probe.GRPC, d memory) { p.Dialer = d }, probe.GRPC{})
	serve := func(write func(fr *http2.Framer)) func(*peer) {
		return func(p *peer) {
			p.take(len(http2.ClientPreface))
			done := make(chan struct{})
			go func() { p.drain(); close(done) }()
			write(http2.NewFramer(p, nil))
			<-done
		}
	}
	// ":status: 200" is entry 8 of HPACK's static table; grpc-status is literal.
	status := []byte("\x88")
	trailers := []byte("\x00\x0bgrpc-status\x010")
	testConversations(t, []conversation{
		{name: "serving", prober: zero, want: healthcheck.Pass, serve: serve(func(fr *http2.Framer) {
			fr.WriteSettings()
			fr.WritePing(false, [8]byte{1})
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: status, EndHeaders: true})
			fr.WriteData(1, false, []byte(serving))
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: trailers, EndHeaders: true, EndStream: true})
		})},
		{name: "reset", prober: zero, want: healthcheck.Fail, err: "RST_STREAM REFUSED_STREAM", serve: serve(func(fr *http2.Framer) {
			fr.WriteSettings()
			fr.WriteRSTStream(1, http2.ErrCodeRefusedStream)
		})},
		{name: "going away", prober: zero, want: healthcheck.Fail, err: "GOAWAY ENHANCE_YOUR_CALM", serve: serve(func(fr *http2.Framer) {
			fr.WriteSettings()
			fr.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, nil)
		})},
		{name: "going away after this", prober: zero, want: healthcheck.Pass, serve: serve(func(fr *http2.Framer) {
			fr.WriteSettings()
			fr.WriteGoAway(1, http2.ErrCodeNo, nil)
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: status, EndHeaders: true})
			fr.WriteData(1, false, []byte(serving))
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: trailers, EndHeaders: true, EndStream: true})
		})},
		{name: "frames without end", prober: zero, want: healthcheck.Fail, err: "too long", serve: serve(func(fr *http2.Framer) {
			for range 20000 {
				if fr.WriteWindowUpdate(0, 1) != nil {
					return
				}
			}
		})},
		{name: "silence", prober: zero, want: healthcheck.Fail, err: "grpc: reply: timed out", serve: serve(func(*http2.Framer) {})},
		{name: "broken header block", prober: zero, want: healthcheck.Fail, err: "grpc: reply: ", serve: serve(func(fr *http2.Framer) {
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), EndHeaders: true})
		})},
	})
}
