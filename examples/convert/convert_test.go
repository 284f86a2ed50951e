package main

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/internal/testenv"
)

func run(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = program().Run(t.Context(), args, cli.IO{Out: &o, Err: &e})
	return status, o.String(), e.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "conf")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// l4lb builds the program whose files are made here.
func l4lb(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "l4lb")
	out, err := exec.Command("go", "build", "-o", bin, "../l4lb").CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	return bin
}

func right(t *testing.T, bin, text string) {
	t.Helper()
	out, err := exec.Command(bin, "check", write(t, text)).CombinedOutput()
	require.NoErrorf(t, err, "%s\n%s", out, text)
}

const keepalivedFile = `! a comment
virtual_server 192.0.2.80 80 {
    delay_loop 6
    lb_algo wrr
    lb_kind NAT
    persistence_timeout 50
    protocol TCP
    sorry_server 10.0.0.9 80
    real_server 10.0.0.1 8080 {
        weight 3
        HTTP_GET {
            url {
                path "/health"   # quoted
                status_code 200
            }
            connect_timeout 3
            retry 2
        }
    }
    real_server 10.0.0.2 8080 { weight 1
        HTTP_GET { url { path /health
 status_code 200 }
 connect_timeout 3
 retry 2 } }
    quorum 2
}
virtual_server 2001:db8::53 53 { lb_algo mh
 lb_kind DR
 protocol UDP
 real_server 2001:db8::1 53 { DNS_CHECK { name example.net } }
}
vrrp_instance v { state MASTER }
`

func TestKeepalived(t *testing.T) {
	status, out, errs := run(t, "keepalived", write(t, keepalivedFile))
	require.Zerof(t, status, "%s", errs)
	require.Contains(t, errs, "quorum 2 is not taken over")
	require.Contains(t, errs, "vrrp_instance v stays with keepalived")
	for _, want := range []string{
		"  \"192.0.2.80-80\":\n    metric: roundrobin\n    mode: entry-per-session\n    ageing: {idle: 50s}\n    check: {method: http, interval: 6s, timeout: 3s, fall: 3, path: \"/health\", status: [200]}\n",
		`      - {name: "s1", address: "10.0.0.9:80", backup: true}`,
		`      - {name: "s2", address: "10.0.0.1:8080", weight: 3}`,
		"    metric: maglev\n    mode: server-per-session\n    forward: dsr\n    check: {method: dns, port: 53, query: \"example.net\"}\n",
		`      - {name: "s1", address: "2001:db8::1"}`,
		`  - {name: "2001:db8::53-53", vip: "2001:db8::53", protocol: udp, port: 53, farm: "2001:db8::53-53"}`,
	} {
		require.Contains(t, out, want)
	}
	right(t, l4lb(t), out)
}

const haproxyFile = `global
    daemon
defaults
    mode tcp
    timeout connect 5s
    timeout client 10m
    timeout server 10m
frontend web
    bind *:443
    bind 192.0.2.81:8443,192.0.2.82:8443
    default_backend servers
backend servers
    balance leastconn
    stick-table type ip size 1m expire 30m
    stick on src
    option httpchk GET /health
    default-server inter 3s rise 2 fall 4
    server web1 10.0.0.1:443 check weight 10
    server web2 10.0.0.2:443 check weight 20 maxconn 1000
    server spare 10.0.0.3:443 check backup
    server named web.example:443 check
listen db
    bind 192.0.2.80:5432
    balance source
    hash-type consistent
    option pgsql-check user monitor
    server db1 10.0.1.1:5432 check port 5433
listen site
    mode http
    bind :80
    server a 10.0.0.1:80
`

func TestHAProxy(t *testing.T) {
	name := write(t, haproxyFile)
	status, out, errs := run(t, "haproxy", "-vip", "192.0.2.80", name)
	require.Zerof(t, status, "%s", errs)
	require.Contains(t, errs, "server named web.example:443 is not taken over: want an IP address")
	require.Contains(t, errs, "listen site is of mode http and left out")
	for _, want := range []string{
		"  \"servers\":\n    metric: leastconns\n    mode: entry-per-session\n    ageing: {idle: 30m0s}\n    check: {method: http, interval: 3s, rise: 2, fall: 4, path: \"/health\"}\n",
		`      - {name: "web2", address: "10.0.0.2:443", weight: 20, max-sessions: 1000}`,
		`      - {name: "spare", address: "10.0.0.3:443", backup: true}`,
		`  - {name: "web", vip: "192.0.2.80", protocol: tcp, port: 443, farm: "servers"}`,
		`  - {name: "web-2", vip: "192.0.2.81", protocol: tcp, port: 8443, farm: "servers"}`,
		"    metric: maglev\n",
		"    check: {method: postgresql, port: 5433, user: \"monitor\"}\n",
	} {
		require.Contains(t, out, want)
	}
	bin := l4lb(t)
	right(t, bin, out)
	_, out, errs = run(t, "haproxy", "-local", "10.0.0.250", name)
	require.Contains(t, errs, "bind *:443 names no address: give the virtual one by -vip")
	require.Contains(t, out, "    forward: fullnat\n    locals: [\"10.0.0.250\"]\n")
	right(t, bin, out)
	// HAProxy itself agrees that it is a configuration, but for the name that cannot be resolved.
	haproxy := testenv.NeedServers(t, "haproxy")[0]
	real := strings.Replace(haproxyFile, "    server named web.example:443 check\n", "", 1)
	b, err := exec.Command(haproxy, "-c", "-f", write(t, real)).CombinedOutput()
	require.NoErrorf(t, err, "%s", b)
}

// The samples that keepalived comes with: all that have a virtual server are taken over and make a right file.
func TestKeepalivedSamples(t *testing.T) {
	names, _ := filepath.Glob("/usr/share/doc/keepalived/samples/keepalived.conf.*")
	if len(names) == 0 {
		t.Skip("keepalived's samples are not installed")
	}
	bin := l4lb(t)
	taken := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		status, out, errs := run(t, "keepalived", name)
		if status != 0 {
			require.Containsf(t, errs, "nothing that could be taken over", "%s", name)
			stanzas, err := parseKeepalived(string(text))
			require.NoError(t, err, name)
			for _, s := range stanzas {
				require.Falsef(t, s.word(0) == "virtual_server" && s.word(1) != "fwmark", "%s: %s", name, errs)
			}
			continue
		}
		taken++
		t.Log(filepath.Base(name))
		right(t, bin, out)
	}
	require.Greater(t, taken, 5)
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "want FILE", []string{"haproxy"}},
		{2, "want keepalived, haproxy", []string{"nginx"}},
		{2, `-vip "x": want an IP address`, []string{"haproxy", "-vip", "x", "y"}},
		{2, `-local "x": want IP addresses`, []string{"haproxy", "-local", "x", "y"}},
		{1, "nothing that could be taken over", []string{"haproxy", write(t, "global\n")}},
		{1, "line 1: } without {", []string{"keepalived", write(t, "}\n")}},
		{1, "line 1: { without }", []string{"keepalived", write(t, "a {\n")}},
		{1, "no such file", []string{"keepalived", "/no/such"}},
	} {
		status, _, errs := run(t, c.args...)
		require.Equal(t, c.status, status, errs)
		require.Contains(t, errs, c.want)
	}
}

func FuzzConvert(f *testing.F) {
	f.Add(keepalivedFile)
	f.Add(haproxyFile)
	f.Fuzz(func(_ *testing.T, text string) {
		if s, err := fromKeepalived(text); err == nil {
			s.yaml("x", nil)
		}
		if s, err := fromHAProxy(text, netip.Addr{}); err == nil {
			s.yaml("x", nil)
		}
	})
}
