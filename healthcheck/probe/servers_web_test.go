//go:build linux

package probe_test

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

func TestServerHTTP(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "nginx")[0]
	dir, plain, good, expired := openDir(t), testenv.FreePort(t), testenv.FreePort(t), testenv.FreePort(t)
	cert, key, cfg := pemFiles(t, dir, time.Now().Add(time.Hour))
	old, oldKey, oldCfg := pemFiles(t, dir, time.Now().Add(-time.Hour))
	page := write(t, dir, "html/index.html", "<p>an elephant</p>\n")
	conf := write(t, dir, "nginx.conf", `
daemon off;
pid %[1]s/pid;
error_log %[1]s/error.log;
worker_processes 1;
events { }
http {
	access_log off;
	client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3;
	uwsgi_temp_path %[1]s/t4; scgi_temp_path %[1]s/t5;
	server {
		listen %[2]s;
		listen [::1]:%[3]d;
		root %[1]s/html;
		location /moved { return 302 /; }
		location /login { return 401; }
		location /broken { return 503 "out of order\n"; }
	}
	server {
		listen %[4]s ssl;
		listen [::1]:%[10]d ssl;
		ssl_certificate %[5]s; ssl_certificate_key %[6]s;
		root %[1]s/html;
	}
	server {
		listen %[7]s ssl;
		ssl_certificate %[8]s; ssl_certificate_key %[9]s;
		root %[1]s/html;
	}
}
`, dir, plain, plain.Port(), good, cert, key, expired, old, oldKey, good.Port())
	s := launch(t, exec.Command(bin, "-p", dir, "-c", conf, "-e", dir+"/error.log"))
	s.until(t, probe.HTTP{}, plain)
	zoo := content(t, healthcheck.Fail, healthcheck.MatchRule{Text: "elephant", Verdict: healthcheck.Pass})
	desert := content(t, healthcheck.Pass, healthcheck.MatchRule{Text: "elephant", Verdict: healthcheck.Fail})
	require.NotEmpty(t, page)
	passes(t, probe.HTTP{Content: zoo}, plain)
	fails(t, probe.HTTP{Content: desert}, plain, `"elephant"`)
	passes(t, probe.HTTP{Path: "/login"}, plain)
	passes(t, probe.HTTP{Path: "/moved", Ranges: []probe.StatusRange{{First: 200, Last: 399}}}, plain)
	fails(t, probe.HTTP{Path: "/moved"}, plain, "302 Moved Temporarily")
	fails(t, probe.HTTP{Path: "/broken"}, plain, "503 Service Temporarily Unavailable")
	fails(t, probe.HTTP{Path: "/none"}, plain, "404 Not Found")
	fails(t, probe.HTTP{}, good, "400 Bad Request") // plain HTTP sent to the port of HTTPS

	passes(t, probe.HTTP{Content: zoo}, v6(plain))
	passes(t, probe.TLSHello{}, v6(good))
	passes(t, probe.TLS{Config: cfg, HTTP: probe.HTTP{Content: zoo}}, v6(good))
	fails(t, probe.TLSHello{}, v6(plain), "want a TLS record")
	passes(t, probe.TLSHello{}, good)
	passes(t, probe.TLS{}, good)
	passes(t, probe.TLS{Config: cfg, HTTP: probe.HTTP{Content: zoo}}, good)
	passes(t, probe.TLS{}, expired)
	fails(t, probe.TLS{Config: oldCfg}, expired, "certificate has expired")
	fails(t, probe.TLS{Config: cfg, MinValidity: 24 * time.Hour}, good, "tls: certificate: ")
	fails(t, probe.TLS{Config: oldCfg}, good, "unknown authority")
	fails(t, probe.TLS{}, plain, "first record does not look like a TLS handshake")
	fails(t, probe.TLSHello{}, plain, "want a TLS record")
	fails(t, probe.TLS{HTTP: probe.HTTP{Path: "/none"}}, good, "404 Not Found")
	s.lifecycle(t, probe.HTTP{Content: zoo}, plain)
	fails(t, probe.TLSHello{}, v6(good), "connection refused")
}

func TestServerTLS(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "openssl")[0]
	dir := openDir(t)
	cert, key, cfg := pemFiles(t, dir, time.Now().Add(time.Hour))
	for _, version := range []string{"-tls1_3", "-tls1_2", "-tls1"} {
		addr := testenv.FreePort(t)
		s := launch(t, exec.Command(bin, "s_server", "-accept", addr.String(), "-cert", cert, "-key", key, "-www", version,
			"-cipher", "ALL:@SECLEVEL=0"))
		get := probe.TLS{HTTP: probe.HTTP{Method: "GET"}} // it knows no HEAD
		s.until(t, get, addr)
		passes(t, probe.TLSHello{ServerName: "x.example.com"}, addr)
		if version == "-tls1" {
			fails(t, probe.TLS{Config: cfg}, addr, "protocol version not supported")
			fails(t, probe.TLS{Config: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}}, addr, "tls: handshake: ")
			continue
		}
		passes(t, probe.TLS{Config: cfg, HandshakeOnly: true}, addr)
		s.lifecycle(t, get, addr)
	}
	// A server that asks for what no client of today offers sends an alert: it lives.
	addr := testenv.FreePort(t)
	s := launch(t, exec.Command(bin, "s_server", "-accept", addr.String(), "-cert", cert, "-key", key, "-www", "-tls1_2", "-cipher", "PSK-AES128-CBC-SHA:@SECLEVEL=0"))
	waitOpen(t, s, addr.String())
	require.Contains(t, passes(t, probe.TLSHello{}, addr).Note, "counts as alive")
	fails(t, probe.TLS{}, addr, "tls: handshake: ")
}

const rtspServer = `
import sys, gi
gi.require_version('Gst', '1.0')
gi.require_version('GstRtspServer', '1.0')
from gi.repository import Gst, GstRtspServer, GLib
Gst.init(None)
server = GstRtspServer.RTSPServer()
server.set_address('127.0.0.1')
server.set_service(sys.argv[1])
server.attach(None)
GLib.MainLoop().run()
`

func TestServerRTSP(t *testing.T) {
	t.Parallel()
	// The distribution's own python3 is the one that has the bindings.
	python := testenv.NeedServers(t, "/usr/bin/python3")[0]
	if err := exec.Command(python, "-c", "import gi; gi.require_version('GstRtspServer', '1.0')").Run(); err != nil {
		testenv.NeedServers(t, "GstRtspServer bindings of python3")
	}
	addr := testenv.FreePort(t)
	s := launch(t, exec.Command(python, "-c", rtspServer, portOf(addr)))
	s.until(t, probe.RTSP{}, addr)
	passes(t, probe.RTSP{URL: "rtsp://" + addr.String() + "/"}, addr)
	fails(t, probe.RTSP{URL: "no-url"}, addr, "RTSP/1.0 400 Bad Request")
	fails(t, probe.HTTP{}, addr, "")
	s.lifecycle(t, probe.RTSP{}, addr)
}

func TestServerGRPC(t *testing.T) {
	t.Parallel()
	goBin := testenv.NeedServers(t, "go")[0]
	// The server is a module of its own, so that its dependencies never reach
	// users of this one.
	bin := openDir(t) + "/grpcserver"
	build := exec.Command(goBin, "build", "-o", bin, ".")
	build.Dir = "testdata/grpcserver"
	build.Env = append(build.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Logf("%s", out)
		testenv.NeedServers(t, "a grpc-go server, which did not build")
	}
	addr := testenv.FreePort(t)
	s := launch(t, exec.Command(bin, addr.String()))
	s.until(t, probe.GRPC{}, addr)
	passes(t, probe.GRPC{Service: "web"}, addr)
	fails(t, probe.GRPC{Service: "db"}, addr, `grpc: reply: got "NOT_SERVING", want SERVING`)
	fails(t, probe.GRPC{Service: "none"}, addr, `got "grpc-status NOT_FOUND unknown service", want OK`)
	fails(t, probe.HTTP{}, addr, "")
	s.lifecycle(t, probe.GRPC{}, addr)
}

// No server for MMS and PNM is packaged. These are written from the published
// descriptions, apart from the probers.

// mmsServer answers LinkViewerToMacConnect (MS-MMSP sections 2.2.3, 2.2.4.2 and
// 3.2.5.3), after a ping if asked to.
func mmsServer(hr uint32, ping bool) func(net.Conn) {
	return func(c net.Conn) {
		le := binary.LittleEndian
		h := make([]byte, 16)
		if _, err := io.ReadFull(c, h); err != nil || le.Uint32(h[4:]) != 0xb00bface || le.Uint32(h[12:]) != 0x20534d4d {
			return
		}
		rest := make([]byte, le.Uint32(h[8:]))
		if _, err := io.ReadFull(c, rest); err != nil {
			return
		}
		message := rest[16:]
		if int(le.Uint32(message))*8 != len(message) || le.Uint32(message[4:]) != 0x00030001 ||
			le.Uint32(message[12:]) != 0x0004000b || le.Uint32(message[16:]) != 0x0003001c {
			return
		}
		var seq uint16
		send := func(fields []byte) {
			for len(fields)%8 != 0 {
				fields = append(fields, 0)
			}
			le.PutUint32(fields, uint32(len(fields)/8))
			b := append([]byte{1, 0, 0, 0}, h[4:8]...)
			b = le.AppendUint32(b, uint32(len(fields)+16))
			b = le.AppendUint32(b, 0x20534d4d)
			b = le.AppendUint32(b, uint32((len(fields)+32)/8))
			b = le.AppendUint16(b, seq)
			b = append(b, make([]byte, 10)...)
			c.Write(append(b, fields...))
			seq++
		}
		if ping {
			send(le.AppendUint32(make([]byte, 4), 0x0004001b))
		}
		m := le.AppendUint32(make([]byte, 4), 0x00040001)
		for _, v := range []uint32{hr, 0xf0f0f0ef, 0x0004000b, 0x0003001c, 0, 0x3ff00000, 1, 1, 0x8000, 0x989680, 11, 0, 0, 0} {
			m = le.AppendUint32(m, v)
		}
		for _, r := range "4.1.0.3928\x00" {
			m = le.AppendUint16(m, uint16(r))
		}
		send(m)
		io.Copy(io.Discard, c)
	}
}

func TestServerMMS(t *testing.T) {
	t.Parallel()
	for _, host := range loopbacks {
		at := net.JoinHostPort(host, "0")
		passes(t, probe.MMS{}, listen(t, at, mmsServer(0, false)))
		passes(t, probe.MMS{}, listen(t, at, mmsServer(0, true)))
		fails(t, probe.MMS{}, listen(t, at, mmsServer(0x80070005, false)), "hr 0x80070005")
		fails(t, probe.MMS{}, closedPort(t, host), "connection refused")
	}
	healthy := listen(t, "127.0.0.1:0", mmsServer(0, false))
	passes(t, probe.MMS{}, proxy(t, healthy, 0))
	drips(t, probe.MMS{}, proxy(t, healthy, 20*time.Millisecond))
	drips(t, probe.MMS{}, listen(t, "127.0.0.1:0", func(c net.Conn) { io.Copy(io.Discard, c) }))
}

// drips wants a probe to fail at its deadline.
func drips(t testing.TB, p healthcheck.Prober, addr interface{ String() string }) {
	t.Helper()
	start := time.Now()
	res := probeAt(p, mustAddr(addr.String()), short)
	require.Equal(t, healthcheck.Fail, res.Verdict)
	require.ErrorContains(t, res.Err, "timed out")
	require.Less(t, time.Since(start), 10*time.Second)
}

// pnmServer reads a request as far as its layout is published: the tag and version, chunks,
// the client string, the path, and the two bytes at the end.
func pnmServer(reply string) func(net.Conn) {
	return func(c net.Conn) {
		b := make([]byte, 4096)
		n := 0
		for n < 4 || string(b[n-2:n]) != "yB" {
			m, err := c.Read(b[n:])
			if err != nil {
				return
			}
			n += m
		}
		if string(b[:11]) != "PNA\x00\x0a\x00\x14\x00\x02\x00\x01" || string(b[n-6:n-2]) != "\x00R\x00\x00" {
			return
		}
		io.WriteString(c, reply)
		io.Copy(io.Discard, c)
	}
}

func TestServerPNM(t *testing.T) {
	t.Parallel()
	for _, host := range loopbacks {
		at := net.JoinHostPort(host, "0")
		passes(t, probe.PNM{}, listen(t, at, pnmServer("PNA\x00\x0aO\x00\x00")))
		passes(t, probe.PNM{}, listen(t, at, pnmServer("r\x00\x01PNA\x00\x0aF\x00")))
		fails(t, probe.PNM{}, listen(t, at, func(c net.Conn) { io.WriteString(c, "HTTP/1.0 400\r\n\r\n") }), "pnm: reply: connection ")
		fails(t, probe.PNM{}, closedPort(t, host), "connection refused")
	}
	healthy := listen(t, "127.0.0.1:0", pnmServer("PNA\x00\x0a"))
	passes(t, probe.PNM{}, proxy(t, healthy, 0))
	drips(t, probe.PNM{}, proxy(t, healthy, 300*time.Millisecond))
	drips(t, probe.PNM{}, listen(t, "127.0.0.1:0", func(c net.Conn) { io.Copy(io.Discard, c) }))
}
