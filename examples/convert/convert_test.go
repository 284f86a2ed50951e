package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
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

// l4lb is the program whose files are made here.
func l4lb(t *testing.T) string {
	t.Helper()
	bin, err := built()
	require.NoError(t, err)
	return bin
}

// built builds it once for all tests, in the folder of TestMain.
var built = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(os.Getenv("CONVERT_TEST"), "l4lb")
	if out, err := exec.Command("go", "build", "-o", bin, "../l4lb").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "convert")
	if err == nil {
		err = os.Setenv("CONVERT_TEST", dir)
	}
	if err != nil {
		panic(err)
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
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

const ipvsFile = `-A -t 192.0.2.80:80 -s wrr -p 50
-a -t 192.0.2.80:80 -r 10.0.0.1:8080 -m -w 3
-a -t 192.0.2.80:80 -r 10.0.0.2:8080 -m -w 1 -x 100 -y 50
-A -u [2001:db8::53]:53 -s mh -b mh-port
-a -u [2001:db8::53]:53 -r [2001:db8::1]:53 -g -w 1
-A -t 192.0.2.81:0 -s rr -p
-a -t 192.0.2.81:0 -r 10.0.0.3:0 -i -w 5
-a -t 192.0.2.81:0 -r 10.0.0.4:0 -i -w 0 --tun-type gue --tun-port 6080
-A -f 1 -s rr
-a -f 1 -r 10.0.0.9:0 -g -w 1
-A -t 192.0.2.99:1 -s sed
`

func TestIPVS(t *testing.T) {
	status, out, errs := run(t, "ipvsadm", write(t, ipvsFile))
	require.Zerof(t, status, "%s", errs)
	for _, want := range []string{
		"line 3: -y 50 is not taken over", "line 4: -b mh-port is not taken over", "line 8: --tun-type gue is not taken over", "line 8: --tun-port 6080 is not taken over",
		"line 9: -A -f 1 -s rr is not taken over: a firewall mark says nothing of addresses", "line 11: scheduler sed: leastconns", "service 192.0.2.99-tcp-1 has no servers",
	} {
		require.Contains(t, errs, want)
	}
	for _, want := range []string{
		"  \"192.0.2.80-tcp-80\":\n    metric: roundrobin\n    mode: entry-per-session\n    ageing: {idle: 50s}\n    nodes:\n",
		`      - {name: "s1", address: "10.0.0.1:8080", weight: 3}`,
		`      - {name: "s2", address: "10.0.0.2:8080", max-sessions: 100}`,
		"  \"2001:db8::53-udp-53\":\n    metric: maglev\n    mode: server-per-session\n    forward: dsr\n    nodes:\n      - {name: \"s1\", address: \"2001:db8::1\"}\n",
		"    metric: roundrobin\n    mode: entry-per-session\n    forward: tunnel\n    tunnel: {kind: ipip}\n    ageing: {idle: 5m0s}\n    nodes:\n      - {name: \"s1\", address: \"10.0.0.3\"}\n      - {name: \"s2\", address: \"10.0.0.4\", weight: 0}\n",
		`  - {name: "192.0.2.81-tcp-any", vip: "192.0.2.81", protocol: tcp, port: any, farm: "192.0.2.81-tcp-any"}`,
	} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, "192.0.2.99\"")
	// What is tunnelled needs an address of the balancer's, which ipvsadm does not know.
	right(t, l4lb(t), strings.Replace(out, "interfaces: [eth0]}", "interfaces: [eth0], addresses: [192.0.2.1]}", 1))
	// Commands of a script, with long options, are the same.
	status, out, errs = run(t, "ipvsadm", write(t, "#!/bin/sh\n/sbin/ipvsadm --add-service --tcp-service 192.0.2.80:80 --scheduler=wlc\nipvsadm --add-server --tcp-service 192.0.2.80:80 --real-server 10.0.0.1 --masquerading --weight=2\n"))
	require.Zerof(t, status, "%s", errs)
	require.Empty(t, errs)
	require.Contains(t, out, `{name: "s1", address: "10.0.0.1", weight: 2}`)
	for _, bad := range []string{"-A -t x:80\n", "-A\n", "-a -t 192.0.2.1:1 -r 10.0.0.1:1\n", "-A -t 192.0.2.1:1 -p x\n", "-D -t 192.0.2.1:1\n", "-A -t 192.0.2.1:1\n-a -t 192.0.2.1:1 -r 10.0.0.1:1 -w -5\n"} {
		status, _, errs := run(t, "ipvsadm", write(t, bad))
		require.Equal(t, 1, status, bad)
		require.Contains(t, errs, "is not taken over", bad)
	}
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
	names := testenv.NeedFiles(t, "/usr/share/doc/keepalived/samples/keepalived.conf.*")
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

// The examples that HAProxy comes with: what is of mode tcp makes a right file, and nothing is passed over in silence.
func TestHAProxyExamples(t *testing.T) {
	names := append(testenv.NeedFiles(t, "/usr/share/doc/haproxy/examples/*.cfg"), testenv.NeedFiles(t, "/etc/haproxy/haproxy.cfg")...)
	bin := l4lb(t)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		status, out, errs := run(t, "haproxy", "-vip", "192.0.2.80", name)
		if status == 0 {
			right(t, bin, out)
			continue
		}
		require.Containsf(t, errs, "nothing that could be taken over", "%s", name)
		for _, sec := range sections(string(text)) {
			if sec.kind == "frontend" || sec.kind == "listen" {
				require.Containsf(t, errs, fmt.Sprintf("line %d: ", sec.line), "%s: %s %s", name, sec.kind, sec.name)
			}
		}
	}
}

// What a file says twice, or of both families, makes a right file.
func TestNamesAndFamilies(t *testing.T) {
	bin := l4lb(t)
	status, out, errs := run(t, "keepalived", write(t, `virtual_server 192.0.2.53 53 { protocol TCP
 lb_kind NAT
 real_server 10.0.0.1 53 { } }
virtual_server 192.0.2.53 53 { protocol UDP
 lb_kind NAT
 real_server 10.0.0.1 53 { } }
virtual_server 2001:db8::80 80 { lb_kind NAT
 real_server 10.0.0.1 80 { } }
`))
	require.Zerof(t, status, "%s", errs)
	require.Contains(t, errs, "line 7: service 2001:db8::80-80 at 2001:db8::80 is left out: its servers, such as 10.0.0.1, are of the other address family")
	require.Contains(t, out, `{name: "192.0.2.53-53-2", vip: "192.0.2.53", protocol: udp, port: 53, farm: "192.0.2.53-53-2"}`)
	right(t, bin, out)

	name := write(t, `listen both
 bind :80
 server a 10.0.0.1:80
 server a 10.0.0.2:80
listen six
 bind 2001:db8::81:80
 server a 2001:db8::1:80
 server b ipv6@[2001:db8::2]:80
 server c 2001:db8::3:
 server d 2001:db8::4:+1
listen tls
 bind 192.0.2.82:443 ssl crt /etc/x.pem
 bind 192.0.2.82:80 accept-proxy
 server a 10.0.0.1:80
listen backend-tls
 bind 192.0.2.83:80
 server a 10.0.0.1:443 ssl verify none
 server b 10.0.0.2:80 send-proxy
 server c 10.0.0.3:80
listen grüße
 bind 192.0.2.84:8000-8010
 bind 192.0.2.84:90-80
 server a 10.0.0.1
`)
	status, out, errs = run(t, "haproxy", "-vip", "192.0.2.80", "-local", "10.0.0.250,fd00::250", name)
	require.Zerof(t, status, "%s", errs)
	for _, want := range []string{
		"bind 192.0.2.82:443 is not taken over: l4lb passes on what clients say, and cannot do what ssl asks for", "cannot do what accept-proxy asks for",
		"server a is not taken over: it expects what HAProxy says by ssl", "server b is not taken over: it expects what HAProxy says by send-proxy", "bind 192.0.2.84:90-80 is not taken over: want a port",
		"server d 2001:db8::4:+1 is not taken over: want an IP address",
	} {
		require.Contains(t, errs, want)
	}
	for _, want := range []string{`{name: "a-2", address: "10.0.0.2:80"}`, `{name: "a", address: "[2001:db8::1]:80"}`, `{name: "b", address: "[2001:db8::2]:80"}`, `{name: "c", address: "2001:db8::3"}`, "locals: [\"fd00::250\"]", "locals: [\"10.0.0.250\"]", `port: 8000-8010`} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, `vip: "192.0.2.82"`)
	require.NotContains(t, out, "10.0.0.1:443")
	right(t, bin, out)

	// Addresses of the wrong family are refused, and it is said whose servers want others.
	status, _, errs = run(t, "haproxy", "-vip", "192.0.2.80", "-local", "10.0.0.250", name)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "-local 10.0.0.250: the servers of farm six, such as 2001:db8::1, are of the other address family: want an IPv6 address, too")
	tunnels := write(t, "-A -t 192.0.2.81:80\n-a -t 192.0.2.81:80 -r 10.0.0.3 -i\n")
	status, _, errs = run(t, "ipvsadm", "-addresses", "fd00::1", tunnels)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "-addresses fd00::1: the tunnels to the servers of farm 192.0.2.81-tcp-80, such as 10.0.0.3, are of the other address family: want an IPv4 address, too")
	status, out, errs = run(t, "ipvsadm", "-addresses", "10.0.0.254,fd00::1", "-interfaces", "eth1,eth2", tunnels)
	require.Zerof(t, status, "%s", errs)
	require.Contains(t, out, `device: {type: tun, interfaces: [eth1, eth2], addresses: ["10.0.0.254", "fd00::1"]} # `)
	right(t, bin, out)
	_, out, errs = run(t, "ipvsadm", tunnels)
	require.Contains(t, out, "# - device.addresses is missing")
	require.Contains(t, errs, "device.addresses is missing")
}

// All addresses of both families are two lines for HAProxy and one virtual address here, which l4lb takes once.
func TestSameAddressTwice(t *testing.T) {
	bin := l4lb(t)
	for _, c := range []struct{ binds, left string }{
		{"bind :80\n bind [::]:80 v6only", "line 4: service f-2 at 192.0.2.80, port 80, is left out: line 3 has that already"},
		{"bind *:80,:::80", "line 3: service f-2 at 192.0.2.80, port 80, is left out: line 3 has that already"},
		{"bind :80-90\n bind :85-95", "line 4: service f-2 at 192.0.2.80, port 85-95, is left out: line 3 has that already"},
		{"bind :80-90\n bind :85\n bind :91", ""},
	} {
		text := "frontend f\n mode tcp\n " + c.binds + "\n default_backend b\nbackend b\n mode tcp\n server a 10.0.0.1:80\n"
		status, out, errs := run(t, "haproxy", "-vip", "192.0.2.80", write(t, text))
		require.Zerof(t, status, "%s", errs)
		if c.left == "" {
			require.NotContains(t, errs, "left out")
		}
		require.Contains(t, errs, c.left)
		right(t, bin, out)
	}
	status, out, errs := run(t, "keepalived", write(t, strings.Repeat("virtual_server 192.0.2.80 80 {\n real_server 10.0.0.1 80 {\n }\n}\n", 2)))
	require.Zerof(t, status, "%s", errs)
	require.Contains(t, errs, "line 5: service 192.0.2.80-80-2 at 192.0.2.80, port 80, is left out: line 1 has that already")
	right(t, bin, out)
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "want FILE", []string{"haproxy"}},
		{2, "want keepalived, ipvsadm, haproxy", []string{"nginx"}},
		{2, `-addresses "x": want IP addresses`, []string{"ipvsadm", "-addresses", "x", "y"}},
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
	f.Add(ipvsFile)
	f.Fuzz(func(_ *testing.T, text string) {
		if s, err := fromKeepalived(text); err == nil {
			s.families()
			s.yaml("x", options{})
		}
		if s, err := fromIPVS(text); err == nil {
			s.families()
			s.yaml("x", options{})
		}
		if s, err := fromHAProxy(text, netip.Addr{}); err == nil {
			s.families()
			s.yaml("x", options{})
		}
	})
}
