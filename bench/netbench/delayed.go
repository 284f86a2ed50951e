package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// delayedModes choose servers by what clients say: TLS sessions on port 443, HTTP requests on port 80.
var delayedModes = []mode{
	// TCP mode with the stick table of SSL session IDs as HAProxy's manual has it, and HTTP mode.
	{"haproxy-delayed", true, startHAProxyDelayed},
	// ssl_preread; port 80 is a proxy of HTTP.
	{"nginx-delayed", true, startNginxDelayed},
	{"tun-first", false, func(l *lab, o options) (string, int, error) { return startOurs(l, o, "tun", "-delay", "first") }},
	{"tun-overwrite", false, func(l *lab, o options) (string, int, error) { return startOurs(l, o, "tun", "-delay", "overwrite") }},
	{"afpacket-first", false, func(l *lab, o options) (string, int, error) { return startOurs(l, o, "afpacket", "-delay", "first") }},
	{"afpacket-overwrite", false, func(l *lab, o options) (string, int, error) {
		return startOurs(l, o, "afpacket", "-delay", "overwrite")
	}},
}

var delayedMeasures = []measure{
	{"tls", "TLS 1.2 handshakes on new connections that resume by session ID (openssl s_time, 8 at a time)", "/s", false, "k", func(ctx context.Context, l *lab, a string, o options) (float64, error) {
		return handshakes(ctx, l, a, o.seconds, "-reuse")
	}},
	{"tls-full", "TLS 1.2 handshakes on new connections, in full", "/s", false, "k", func(ctx context.Context, l *lab, a string, o options) (float64, error) {
		return handshakes(ctx, l, a, o.seconds, "-new")
	}},
}

// delayOf returns delayed binding for a service of the program under test.
func delayOf(mode, service string, pool *steering.Pool) (*dataplane.Delay, error) {
	switch service {
	case "secure":
		farm, err := sslpersist.NewFarm(&sslpersist.Settings[steering.NodeID]{Ports: []uint16{443}})
		return &dataplane.Delay{Read: dataplane.ReadTLS, Sessions: farm}, err
	case "web":
		cfg := &l7.Config{Default: l7.Action{Do: l7.Reply, Code: 404}}
		if err := cfg.Mode.UnmarshalText([]byte(mode)); err != nil {
			return nil, err
		}
		rules, err := l7.Compile(cfg,
			l7.Rule{Index: 1, First: l7.Method{Kind: l7.PathPrefix, Value: "/no"}, Action: l7.Action{Do: l7.Drop}},
			l7.Rule{Index: 2, First: l7.Method{Kind: l7.PathPrefix, Value: "/"}, Action: l7.Action{Do: l7.Farm, Farm: "all"}})
		return &dataplane.Delay{Read: dataplane.ReadHTTP, Rules: rules, Farms: map[string]*steering.Pool{"all": pool}}, err
	}
	return &dataplane.Delay{}, nil
}

// certificate writes a certificate and its key.
func (l *lab) certificate() (cert, key string, err error) {
	cert, key = filepath.Join(l.tmp, "cert.pem"), filepath.Join(l.tmp, "key.pem")
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		return "", "", err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return "", "", err
	}
	return cert, key, errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
}

func startHAProxyDelayed(l *lab, o options) (string, int, error) {
	file := filepath.Join(l.tmp, "haproxy-delayed.cfg")
	servers := func(port string) string {
		return fmt.Sprintf("  server s0 %s\n  server s1 %s\n", net.JoinHostPort(l.net.servers[0], port), net.JoinHostPort(l.net.servers[1], port))
	}
	bind := func(port string) string { return "  bind " + net.JoinHostPort(l.net.vip, port) + "\n" }
	conf := fmt.Sprintf("global\n  nbthread 1\n  maxconn %[1]d\ndefaults\n  mode tcp\n  maxconn %[1]d\n  timeout connect 5s\n  timeout client 10m\n  timeout server 10m\n  timeout http-request 10s\n", max(100, min(20000, o.most))) +
		"listen p5201\n" + bind("5201") + "  balance source\n" + servers("5201") + "listen p81\n" + bind(idlePort) + servers(idlePort) +
		"listen p80\n  mode http\n" + bind("80") + "  http-request deny if { path_beg /no }\n  use_backend all if { path_beg / }\n" +
		"backend all\n  mode http\n  http-reuse safe\n" + servers("80") +
		"listen p443\n" + bind("443") + `  stick-table type binary len 32 size 30k expire 30m
  acl clienthello req_ssl_hello_type 1
  acl serverhello rep_ssl_hello_type 2
  tcp-request inspect-delay 5s
  tcp-request content accept if clienthello
  tcp-response content accept if serverhello
  stick on payload_lv(43,1) if clienthello
  stick store-response payload_lv(43,1) if serverhello
` + servers("443")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return "", 0, err
	}
	return startProxy(l, "haproxy", "-db", "-f", file)
}

func startNginxDelayed(l *lab, _ options) (string, int, error) {
	file := filepath.Join(l.tmp, "delayed.conf")
	module := "/usr/lib/nginx/modules/ngx_stream_module.so"
	if _, err := os.Stat(module); err != nil {
		return "", 0, &absentError{"nginx's stream module"}
	}
	conf := fmt.Sprintf(`load_module %s; worker_processes 1; daemon off; master_process off; pid %[2]s/delayed.pid; error_log /dev/null; worker_rlimit_nofile 262144;
events { worker_connections 60000; }
stream {
 upstream bulk { hash $remote_addr; server %[3]s:5201; server %[4]s:5201; }
 server { listen %[5]s:5201; proxy_pass bulk; }
 upstream idle { server %[3]s:81; server %[4]s:81; }
 server { listen %[5]s:81; proxy_pass idle; }
 map $ssl_preread_server_name $to { default secure; no.example none; }
 upstream secure { server %[3]s:443; server %[4]s:443; }
 upstream none { server 127.0.0.1:1; }
 server { listen %[5]s:443; ssl_preread on; proxy_pass $to; }
}
http { access_log off; keepalive_requests 1000000000;
 upstream web { server %[3]s:80; server %[4]s:80; keepalive 64; }
 server { listen %[5]s:80; location / { proxy_pass http://web; proxy_http_version 1.1; proxy_set_header Connection ""; } location /no { return 403; } }
}
`, module, l.tmp, inURL(l.net.servers[0]), inURL(l.net.servers[1]), inURL(l.net.vip))
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return "", 0, err
	}
	return startProxy(l, "nginx", "-c", file)
}

var connections = regexp.MustCompile(`(?m)^([0-9]+) connections in ([0-9]+) real seconds`)

// handshakes has several clients connect, one after another each.
func handshakes(ctx context.Context, l *lab, addr string, d time.Duration, how string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*d+20*time.Second)
	defer cancel()
	const clients = 8
	var mu sync.Mutex
	var wg sync.WaitGroup
	var sum float64
	var faults error
	for range clients {
		wg.Go(func() {
			out, err := l.command(ctx, l.client, "openssl", "s_time", "-connect", net.JoinHostPort(addr, "443"), "-tls1_2", how, "-time", seconds(d))
			mu.Lock()
			defer mu.Unlock()
			m := connections.FindSubmatch(out)
			if m == nil {
				faults = errors.Join(faults, err, fmt.Errorf("openssl s_time: %s", out))
				return
			}
			n, _ := strconv.ParseFloat(string(m[1]), 64)
			s, _ := strconv.ParseFloat(string(m[2]), 64)
			sum += n / max(s, 1)
		})
	}
	wg.Wait()
	return sum, faults
}
